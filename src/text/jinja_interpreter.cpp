// Walks the syntax tree. Statements write to the current output, expressions give values; a block of a loop or macro
// has a Scope of its own, if-blocks share the one around them.
#include "text/jinja_interpreter.h"

#include <algorithm>

#include "text/jinja_arithmetic.h"
#include "text/jinja_builtins.h"

namespace onebit::jinja {

namespace {

/// How a statement ends.
enum class Flow { next, break_, continue_ };

class Interpreter {
 public:
  Interpreter(Runtime& rt, Scope& globals) : rt_(rt), scope_(&globals) {}

  Text run(const Block& body) {
    run_block(body);
    return std::move(prompt_);
  }

 private:
  // ---- statements ----

  Flow run_block(const Block& block) {
    const Deeper deeper(rt_);
    for (const Statement& statement : block) {
      const Flow flow = run_statement(statement);
      if (flow != Flow::next) return flow;
    }
    return Flow::next;
  }

  Flow run_statement(const Statement& s) {
    rt_.line = s.line;
    rt_.step();
    switch (s.kind) {
      case StatementKind::text:
        print(s.text);
        break;
      case StatementKind::print:
        print(*to_text(rt_, eval(*s.value)));
        break;
      case StatementKind::if_:
        return run_if(s);
      case StatementKind::for_:
        return run_for(s, eval(*s.value), scope_, 0);
      case StatementKind::set:
        assign(*s.target, eval(*s.value));
        break;
      case StatementKind::set_block:
        assign(*s.target, filtered_body(s));
        break;
      case StatementKind::filter_block:
        print(*to_text(rt_, filtered_body(s)));
        break;
      case StatementKind::macro:
        scope_->set(rt_, s.name, make_macro(s));
        break;
      case StatementKind::call_block:
        run_call_block(s);
        break;
      case StatementKind::with:
        return run_with(s);
      case StatementKind::break_:
        return Flow::break_;
      case StatementKind::continue_:
        return Flow::continue_;
    }
    return Flow::next;
  }

  void print(const Text& text) {
    rt_.take(text.size());
    output_->append(text);
    if (output_ == &prompt_ && prompt_.size() > rt_.limits.output) {
      rt_.fail("the prompt has more than {} bytes", rt_.limits.output);
    }
  }

  Flow run_if(const Statement& s) {
    for (const Branch& branch : s.branches) {
      if (!branch.test || is_true(eval(*branch.test))) return run_block(branch.body);
    }
    return Flow::next;
  }

  /// A for loop over `iterable` in the scope `closure`; `depth0` is its level of recursion.
  Flow run_for(const Statement& s, const Value& iterable, Scope* closure, int64_t depth0) {
    Scope* const outer = scope_;
    const List* items = rt_.keep(List{loop_items(s, elements(rt_, iterable), closure)});
    Loop* loop = rt_.keep(Loop{&s, closure, items, 0, depth0});
    Scope* scope = nullptr;
    for (const Value& item : items->items) {
      scope_ = scope = next_scope(scope, closure);
      scope_->set(rt_, "loop", loop);
      assign(*s.target, item);
      if (run_block(s.body) == Flow::break_) break;
      ++loop->index0;
    }
    scope_ = outer;
    return items->items.empty() ? run_block_in(rt_.keep(Scope{closure, {}}), s.otherwise) : Flow::next;
  }

  /// The items that the loop's condition lets through.
  std::vector<Value> loop_items(const Statement& s, std::vector<Value> items, Scope* closure) {
    if (!s.condition) return items;
    Scope* const outer = scope_;
    std::vector<Value> chosen;
    Scope* scope = nullptr;
    for (const Value& item : items) {
      scope_ = scope = next_scope(scope, closure);
      assign(*s.target, item);
      if (is_true(eval(*s.condition))) chosen.push_back(item);
    }
    scope_ = outer;
    return chosen;
  }

  /// An empty scope for the next round of a loop: the last one again, unless a macro keeps it.
  Scope* next_scope(Scope* last, Scope* closure) {
    if (!last || last->is_captured) return rt_.keep(Scope{closure, {}});
    last->variables.clear();
    return last;
  }

  Macro* make_macro(const Statement& s) {
    for (Scope* scope = scope_; scope && !scope->is_captured; scope = scope->parent) scope->is_captured = true;
    return rt_.keep(Macro{&s, scope_});
  }

  Flow run_block_in(Scope* scope, const Block& block) {
    Scope* const outer = std::exchange(scope_, scope);
    const Flow flow = run_block(block);
    scope_ = outer;
    return flow;
  }

  /// The output of a block, run in `scope`.
  const Text* capture(Scope* scope, const Block& block) {
    Text captured;
    Text* const outer = std::exchange(output_, &captured);
    run_block_in(scope, block);
    output_ = outer;
    return rt_.keep(std::move(captured));
  }

  /// The body's output after the filters in s.value.
  Value filtered_body(const Statement& s) {
    Scope* scope = rt_.keep(Scope{scope_, {}});
    scope->set(rt_, kBlockText, capture(rt_.keep(Scope{scope_, {}}), s.body));
    Scope* const outer = std::exchange(scope_, scope);
    const Value value = eval(*s.value);
    scope_ = outer;
    return value;
  }

  void run_call_block(const Statement& s) {
    const Expr& call = *s.value;
    const Value callee = eval(*call.operands[0]);
    CallArguments args = eval_arguments(call);
    args.named.emplace_back("caller", make_macro(s));
    print(*to_text(rt_, apply(callee, args, call.line)));
  }

  Flow run_with(const Statement& s) {
    Scope* scope = rt_.keep(Scope{scope_, {}});
    for (const Parameter& p : s.parameters) scope->set(rt_, p.name, eval(*p.default_value));
    return run_block_in(scope, s.body);
  }

  void assign(const Expr& target, const Value& value) {
    if (target.kind == ExprKind::name) {
      scope_->set(rt_, target.name, value);
    } else if (target.kind == ExprKind::attribute) {
      Scope* space = as<Scope>(eval(*target.operands[0]));
      if (!space) rt_.fail("only a namespace() has attributes that can be set");
      space->set(rt_, target.name, value);
    } else {
      const std::vector<Value> parts = elements(rt_, value);
      if (parts.size() != target.operands.size()) {
        rt_.fail("{} names for {} values", target.operands.size(), parts.size());
      }
      for (size_t i = 0; i < parts.size(); ++i) assign(*target.operands[i], parts[i]);
    }
  }

  // ---- expressions ----

  Value eval(const Expr& e) {
    const Deeper deeper(rt_);
    rt_.line = e.line;
    switch (e.kind) {
      case ExprKind::literal:
        return e.value;
      case ExprKind::name:
        return variable(e.name);
      case ExprKind::list:
        return rt_.keep(List{eval_all(e, 0)});
      case ExprKind::tuple:
        return rt_.keep(List{eval_all(e, 0), true});
      case ExprKind::dict:
        return eval_dict(e);
      case ExprKind::negate:
        return negate(rt_, operand(e, 0));
      case ExprKind::plus:
        return add(rt_, int64_t{0}, operand(e, 0));
      case ExprKind::not_:
        return !is_true(operand(e, 0));
      case ExprKind::and_:
      case ExprKind::or_: {
        const Value left = operand(e, 0);
        return is_true(left) == (e.kind == ExprKind::or_) ? left : operand(e, 1);
      }
      case ExprKind::add:
        return binary(e, add);
      case ExprKind::subtract:
        return binary(e, subtract);
      case ExprKind::multiply:
        return binary(e, multiply);
      case ExprKind::divide:
        return binary(e, divide);
      case ExprKind::floor_divide:
        return binary(e, floor_divide);
      case ExprKind::modulo:
        return binary(e, modulo);
      case ExprKind::power:
        return binary(e, power);
      case ExprKind::concat:
        return eval_concat(e);
      case ExprKind::compare:
        return eval_compare(e);
      case ExprKind::conditional:
        return operand(e, is_true(operand(e, 1)) ? 0 : 2);
      case ExprKind::attribute:
        return attribute(operand(e, 0), e);
      case ExprKind::item:
        return eval_item(e);
      case ExprKind::slice:
        return eval_slice(e);
      case ExprKind::call:
        return eval_call(e);
      case ExprKind::filter:
        return eval_builtin(e, "filter", find_filter(e.name));
      case ExprKind::test:
        return eval_builtin(e, "test", find_test(e.name));
    }
    return None{};
  }

  /// The value of an operand, undefined when it was left out.
  Value operand(const Expr& e, size_t i) { return e.operands[i] ? eval(*e.operands[i]) : Value(Undefined{"a value"}); }

  std::vector<Value> eval_all(const Expr& e, size_t first) {
    std::vector<Value> values;
    for (size_t i = first; i < e.operands.size(); ++i) values.push_back(operand(e, i));
    return values;
  }

  Value binary(const Expr& e, Value (*compute)(Runtime&, const Value&, const Value&)) {
    const Value left = operand(e, 0), right = operand(e, 1);
    rt_.line = e.line;
    return compute(rt_, left, right);
  }

  Value variable(const std::string& name) {
    if (const Value* value = scope_->find(rt_, name)) return *value;
    if (const BuiltinRow* row = find_global(name)) return rt_.keep(Function{row, None{}});
    return Undefined{name};
  }

  Value eval_dict(const Expr& e) {
    Dict dict;
    for (size_t i = 0; i < e.operands.size(); i += 2) {
      const Value key = operand(e, i), value = operand(e, i + 1);
      store(rt_, dict, key, value);
    }
    return rt_.keep(std::move(dict));
  }

  Value eval_concat(const Expr& e) {
    Text out;
    for (const Value& v : eval_all(e, 0)) {
      const Text& part = *to_text(rt_, v);
      rt_.take(part.size());
      out.append(part);
    }
    return rt_.keep(std::move(out));
  }

  Value eval_compare(const Expr& e) {
    Value left = operand(e, 0);
    for (size_t i = 0; i < e.words.size(); ++i) {
      const Value right = operand(e, i + 1);
      rt_.line = e.line;
      if (!compare(left, e.words[i], right)) return false;
      left = right;
    }
    return true;
  }

  bool compare(const Value& a, const std::string& op, const Value& b) {
    if (op == "==") return equal(rt_, a, b);
    if (op == "!=") return !equal(rt_, a, b);
    if (op == "in") return contains(rt_, b, a);
    if (op == "not in") return !contains(rt_, b, a);
    if (op == "<") return less(rt_, a, b);
    if (op == ">") return less(rt_, b, a);
    return (op == "<=" ? less(rt_, a, b) : less(rt_, b, a)) || equal(rt_, a, b);
  }

  /// v.name: a method, else an item.
  Value attribute(const Value& v, const Expr& e) {
    if (const BuiltinRow* method = find_method(v, e.name)) return rt_.keep(Function{method, v});
    if (const Loop* loop = as<const Loop>(v)) return loop_attribute(*loop, e.name);
    return item(rt_, v, &e.text);
  }

  /// v[key]: an item, else a method.
  Value eval_item(const Expr& e) {
    const Value v = operand(e, 0), key = operand(e, 1);
    rt_.line = e.line;
    const Value found = item(rt_, v, key);
    const BuiltinRow* method = is_undefined(found) && as_text(key) ? find_method(v, as_text(key)->str()) : nullptr;
    return method ? Value(rt_.keep(Function{method, v})) : found;
  }

  Value eval_slice(const Expr& e) {
    const std::vector<Value> parts = eval_all(e, 0);
    rt_.line = e.line;
    return slice(rt_, parts[0], parts[1], parts[2], parts[3]);
  }

  static Value loop_attribute(const Loop& loop, std::string_view name) {
    const std::vector<Value>& items = loop.items->items;
    const int64_t n = static_cast<int64_t>(items.size()), i = loop.index0;
    if (name == "index") return i + 1;
    if (name == "index0") return i;
    if (name == "revindex") return n - i;
    if (name == "revindex0") return n - i - 1;
    if (name == "first") return i == 0;
    if (name == "last") return i == n - 1;
    if (name == "length") return n;
    if (name == "depth") return loop.depth0 + 1;
    if (name == "depth0") return loop.depth0;
    if (name == "previtem" && i > 0) return items[static_cast<size_t>(i - 1)];
    if (name == "nextitem" && i + 1 < n) return items[static_cast<size_t>(i + 1)];
    return Undefined{name};
  }

  // ---- calls ----

  CallArguments eval_arguments(const Expr& e) {
    CallArguments args{eval_all(e, 1), {}};
    const size_t n_positional = args.positional.size() - e.words.size();
    for (size_t i = 0; i < e.words.size(); ++i) args.named.emplace_back(e.words[i], args.positional[n_positional + i]);
    args.positional.resize(n_positional);
    return args;
  }

  Value eval_builtin(const Expr& e, std::string_view kind, const BuiltinRow* row) {
    const Value self = operand(e, 0);
    const CallArguments args = eval_arguments(e);
    rt_.line = e.line;
    if (!row) rt_.fail("there is no {} '{}'", kind, e.name);
    return call_builtin(rt_, *row, self, args);
  }

  Value eval_call(const Expr& e) {
    const Value callee = operand(e, 0);
    return apply(callee, eval_arguments(e), e.line);
  }

  Value apply(const Value& callee, const CallArguments& args, int line) {
    rt_.line = line;
    if (const Function* function = as<const Function>(callee)) {
      return call_builtin(rt_, *function->builtin, function->self, args);
    }
    if (const Macro* macro = as<const Macro>(callee)) return call_macro(*macro, args);
    if (const Loop* loop = as<const Loop>(callee)) return call_loop(*loop, args);
    if (const Undefined* u = std::get_if<Undefined>(&callee)) rt_.fail("'{}' is undefined", u->name);
    rt_.fail("a value of type {} can't be called", type_name(callee));
  }

  /// Parameters take the positional arguments, then the named ones, then their defaults; what is left over goes to the
  /// variables `varargs` and `kwargs`.
  Value call_macro(const Macro& macro, const CallArguments& args) {
    const Statement& definition = *macro.definition;
    Scope* scope = rt_.keep(Scope{macro.closure, {}});
    Scope* const outer = std::exchange(scope_, scope);
    std::vector<Value> rest;
    Dict named;
    const size_t n = definition.parameters.size();
    for (size_t i = n; i < args.positional.size(); ++i) rest.push_back(args.positional[i]);
    for (const auto& [name, value] : args.named) {
      const auto is_it = [&name = name](const Parameter& p) { return p.name == name; };
      const bool known = std::any_of(definition.parameters.begin(), definition.parameters.end(), is_it);
      if (known || name == "caller") {
        scope->set(rt_, name, value);
      } else {
        store(rt_, named, rt_.text(name), value);
      }
    }
    for (size_t i = 0; i < n; ++i) bind_parameter(*scope, definition.parameters[i], args, i);
    scope->set(rt_, "varargs", rt_.keep(List{std::move(rest), true}));
    scope->set(rt_, "kwargs", rt_.keep(std::move(named)));
    const Text* text = capture(scope, definition.body);
    scope_ = outer;
    return text;
  }

  void bind_parameter(Scope& scope, const Parameter& p, const CallArguments& args, size_t i) {
    rt_.scan_items(args.named.size());
    const auto named =
        std::find_if(args.named.begin(), args.named.end(), [&](const auto& a) { return a.first == p.name; });
    if (i < args.positional.size()) {
      if (named != args.named.end()) rt_.fail("the argument '{}' is given twice", p.name);
      scope.set(rt_, p.name, args.positional[i]);
    } else if (named == args.named.end()) {
      scope.set(rt_, p.name, p.default_value ? eval(*p.default_value) : Value(Undefined{p.name}));
    }
  }

  /// loop(items) in a recursive loop: the loop's output for these items.
  Value call_loop(const Loop& loop, const CallArguments& args) {
    if (!loop.statement->is_recursive) rt_.fail("the loop is not marked 'recursive'");
    if (args.positional.size() != 1) rt_.fail("loop() wants one argument");
    const Deeper deeper(rt_);
    Text captured;
    Text* const outer = std::exchange(output_, &captured);
    run_for(*loop.statement, args.positional[0], loop.closure, loop.depth0 + 1);
    output_ = outer;
    return rt_.keep(std::move(captured));
  }

  Runtime& rt_;
  Scope* scope_;
  Text prompt_;
  Text* output_ = &prompt_;  ///< where statements print: the prompt, or the text of a macro or block
};

}  // namespace

Text render(const Template& body, Runtime& rt, Scope& globals) { return Interpreter(rt, globals).run(body.body); }

}  // namespace onebit::jinja
