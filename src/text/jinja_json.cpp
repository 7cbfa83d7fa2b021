// JSON <-> values, in the manner of Python's json module.
#include "text/jinja_json.h"

#include <algorithm>
#include <cmath>

namespace onebit::jinja {

Value from_json(Runtime& rt, const nlohmann::ordered_json& json, bool from_input) {
  using Kind = nlohmann::ordered_json::value_t;
  const Deeper deeper(rt);
  switch (json.type()) {
    case Kind::boolean:
      return json.get<bool>();
    case Kind::number_integer:
      return json.get<int64_t>();
    case Kind::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) return json.get<double>();
      return json.get<int64_t>();
    case Kind::number_float:
      return json.get<double>();
    case Kind::string:
      return rt.text(json.get_ref<const std::string&>(), from_input);
    case Kind::array: {
      List list;
      for (const auto& element : json) list.items.push_back(from_json(rt, element, from_input));
      return rt.keep(std::move(list));
    }
    case Kind::object: {
      Dict dict;
      for (const auto& [key, value] : json.items()) {
        dict.entries.emplace_back(rt.text(key, from_input), from_json(rt, value, from_input));
      }
      return rt.keep(std::move(dict));
    }
    default:
      return None{};
  }
}

namespace {

class JsonWriter {
 public:
  JsonWriter(Runtime& rt, const JsonStyle& style) : rt_(rt), style_(style) {}

  void write(const Value& v) {
    const Deeper deeper(rt_);
    if (const Text* text = as_text(v)) {
      write_string(*text);
    } else if (const List* list = as<List>(v)) {
      write_list(*list);
    } else if (const Dict* dict = as<Dict>(v)) {
      write_dict(*dict);
    } else if (is_none(v) || is_number(v)) {
      out_.append(scalar(v));
    } else {
      rt_.fail("a value of type {} can't be written as JSON", type_name(v));
    }
  }

  Text take() { return std::move(out_); }

 private:
  static std::string scalar(const Value& v) {
    if (is_none(v)) return "null";
    if (const bool* b = std::get_if<bool>(&v)) return *b ? "true" : "false";
    if (const int64_t* i = std::get_if<int64_t>(&v)) return std::to_string(*i);
    const double d = as_float(v);
    if (std::isnan(d)) return "NaN";
    return std::isinf(d) ? (d < 0 ? "-Infinity" : "Infinity") : float_text(d);
  }

  void write_list(const List& list) {
    out_.append("[");
    ++level_;
    for (size_t i = 0; i < list.items.size(); ++i) {
      start_element(i);
      write(list.items[i]);
    }
    end_elements(list.items.size());
    out_.append("]");
  }

  void write_dict(const Dict& dict) {
    std::vector<std::pair<Value, Value>> entries = dict.entries;
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto& a, const auto& b) { return less(rt_, a.first, b.first); });
    }
    out_.append("{");
    ++level_;
    for (size_t i = 0; i < entries.size(); ++i) {
      start_element(i);
      write_key(entries[i].first);
      out_.append(style_.key_separator);
      write(entries[i].second);
    }
    end_elements(entries.size());
    out_.append("}");
  }

  void write_key(const Value& key) {
    if (const Text* text = as_text(key)) return write_string(*text);
    if (!is_none(key) && !is_number(key)) rt_.fail("a {} can't be a key in JSON", type_name(key));
    out_.append("\"");
    out_.append(scalar(key));
    out_.append("\"");
  }

  void start_element(size_t i) {
    rt_.take(style_.item_separator.size() + style_.key_separator.size());
    if (i > 0) out_.append(style_.item_separator);
    new_line();
  }

  void end_elements(size_t n) {
    --level_;
    if (n > 0) new_line();
  }

  void new_line() {
    if (style_.indent < 0) return;
    const size_t blanks = static_cast<size_t>(style_.indent) * level_;
    rt_.take(blanks + 1);
    out_.append("\n");
    out_.append(std::string(blanks, ' '));
  }

  void write_string(const Text& s) {
    rt_.take(s.size() + 2);
    rt_.scan_text(s.size());
    out_.append("\"");
    size_t done = 0;
    size_t span = 0;
    for (size_t pos = 0; pos < s.size();) {
      const size_t begin = pos;
      const char32_t c = next_char(s.str(), pos);
      if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7f || !style_.ensure_ascii)) continue;
      while (span < s.input_spans().size() && s.input_spans()[span].end <= begin) ++span;
      const bool from_input = span < s.input_spans().size() && s.input_spans()[span].begin <= begin;
      out_.append(s, done, begin);
      out_.append(escape(c), from_input);
      done = pos;
    }
    out_.append(s, done, s.size());
    out_.append("\"");
  }

  static std::string escape(char32_t c) {
    switch (c) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\f':
        return "\\f";
      case '\b':
        return "\\b";
      default:
        break;
    }
    const uint32_t code = c;
    if (code < 0x10000) return fmt::format("\\u{:04x}", code);
    return fmt::format("\\u{:04x}\\u{:04x}", 0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff));
  }

  Runtime& rt_;
  const JsonStyle& style_;
  Text out_;
  size_t level_ = 0;
};

}  // namespace

const Text* to_json(Runtime& rt, const Value& v, const JsonStyle& style) {
  JsonWriter writer(rt, style);
  writer.write(v);
  return rt.keep(writer.take());
}

}  // namespace onebit::jinja
