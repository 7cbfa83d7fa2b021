// `1bit inspect`: what a GGUF file holds, without building a model of it. Any file that the reader accepts works.
#include <fmt/ranges.h>

#include <map>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "gguf/file.h"
#include "gguf/hadamard.h"
#include "gguf/keys.h"
#include "model/drafter.h"
#include "model/linear.h"
#include "model/model.h"
#include "model/registry.h"
#include "model/weights.h"

namespace onebit {
namespace {

constexpr uint64_t kShownElements = 16;  // longer arrays are told by their length
constexpr int64_t kContextStep = 1024;   // tokens that the memory need of a context is given for

template <class T>
Json numbers(const GgufFile& file, const MetaEntry& entry) {
  if (entry.value.type != ValueType::array) return Json(file.require<T>(entry.key));
  return Json(file.require<std::vector<T>>(entry.key));
}

Json value_json(const GgufFile& file, const MetaEntry& entry) {
  const MetaValue& value = entry.value;
  if (value.type == ValueType::array && (value.count > kShownElements || value.element == ValueType::array)) {
    return Json{{"array_of", value_type_name(value.element)}, {"count", value.count}};
  }
  switch (value.element) {
    case ValueType::array:
      return nullptr;
    case ValueType::string:
      return numbers<std::string>(file, entry);
    case ValueType::boolean:
      return numbers<bool>(file, entry);
    case ValueType::f32:
    case ValueType::f64:
      return numbers<double>(file, entry);
    case ValueType::u64:
      return numbers<uint64_t>(file, entry);
    default:
      return numbers<int64_t>(file, entry);
  }
}

/// How the engine uses a tensor: "w4a4", "int8", "f32", "gather", or nothing for types it can't compute with.
std::string path_of_tensor(Weights& weights, const TensorInfo& tensor) {
  if (!type_info(tensor.type).decodable) return "";
  const GgufFile& file = weights.file();
  const bool codebook = tensor.name == keys::kSelectorPredecessor || tensor.name == keys::kSelectorSuccessor;
  const bool table = tensor.name == keys::kTokenEmbd && file.has(keys::kArchitecture) && file.find(keys::kOutput);
  if (codebook || table) return "gather";
  return std::string(path_of(weights.get(tensor.name, tensor.shape)));
}

struct TypeTotal {
  int64_t n_tensors = 0, n_elements = 0, bytes = 0;
};

struct Memory {
  int64_t weights = 0;
  std::optional<int64_t> context, slot;  // caches per kContextStep tokens and states per sequence, of known models
  std::string problem;                   // why the file is no model that can be run, although its architecture is known
};

Memory memory_need(const GgufFile& file) {
  Memory memory;
  for (const TensorInfo& tensor : file.tensors()) memory.weights += static_cast<int64_t>(tensor.data.size());
  bool known = false;
  for (const Architecture& row : architectures())
    known |= row.name == file.get_or<std::string>(keys::kArchitecture, "");
  if (!known) return memory;
  std::unique_ptr<Model> model;
  try {
    model = Model::open(file.path(), W4a4::automatic);
  } catch (const Error& error) {  // a finding here, not a failure
    memory.problem = error.what();
    return memory;
  }
  memory.context = memory.slot = 0;
  for (const State* state : model->states()) {
    const bool cache = std::holds_alternative<KvState>(state->kind);
    StateSizes sizes;
    if (cache) sizes.n_pages = kContextStep / kPageTokens;
    if (!cache) sizes.n_slots = 1;
    *(cache ? memory.context : memory.slot) += state_bytes(*state, sizes);
  }
  return memory;
}

Json tensor_json(Weights& weights, const TensorInfo& tensor) {
  const std::string path = path_of_tensor(weights, tensor);
  return Json{{"name", tensor.name},
              {"type", type_name(tensor.type)},
              {"shape", tensor.shape},
              {"rotated", is_rotated(tensor, weights.stamp())},
              {"path", path.empty() ? Json(nullptr) : Json(path)}};
}

Json document(const GgufFile& file, Weights& weights) {
  Json tensors = Json::array(), metadata = Json::object();
  int64_t parameters = 0;
  for (const TensorInfo& tensor : file.tensors()) {
    parameters += tensor.n_elements();
    tensors.push_back(tensor_json(weights, tensor));
  }
  for (const MetaEntry& entry : file.metadata()) metadata[entry.key] = value_json(file, entry);
  const Memory memory = memory_need(file);
  Json need = {{"weights", memory.weights}};
  if (memory.context) need["context_per_1024_tokens"] = *memory.context;
  if (memory.slot) need["per_sequence"] = *memory.slot;
  const Json problem = memory.problem.empty() ? Json(nullptr) : Json(memory.problem);
  return Json{{"path", file.path()},         {"architecture", file.get_or<std::string>(keys::kArchitecture, "")},
              {"parameters", parameters},    {"file_bytes", file.file_bytes()},
              {"hadamard", weights.stamp()}, {"memory", need},
              {"problem", problem},          {"metadata", metadata},
              {"tensors", tensors}};
}

void print_tensors(const Json& tensors) {
  for (const Json& tensor : tensors) {
    const Json& path = tensor["path"];
    print(fmt::format("  {:<44} {:<8} {:<22} {}{}\n", printable(tensor["name"].get<std::string>()),
                      tensor["type"].get<std::string>(), shape_text(tensor["shape"].get<std::vector<int64_t>>()),
                      path.is_null() ? "not computed" : path.get<std::string>(),
                      tensor["rotated"].get<bool>() ? ", rotated" : ""));
  }
}

void print_totals(const GgufFile& file, const Json& tensors) {
  std::map<std::string, TypeTotal> types, paths;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& tensor = file.tensors()[i];
    const Json& path = tensors[i]["path"];
    const std::string way = path.is_null() ? "not computed" : path.get<std::string>();
    for (TypeTotal* total : {&types[type_name(tensor.type)], &paths[way]}) {
      total->n_tensors += 1;
      total->n_elements += tensor.n_elements();
      total->bytes += static_cast<int64_t>(tensor.data.size());
    }
  }
  for (const auto& [title, totals] : {std::pair{"types", &types}, std::pair{"paths", &paths}}) {
    print(fmt::format("{}:\n", title));
    for (const auto& [name, total] : *totals) {
      print(fmt::format("  {:<14} {:>5} tensors {:>14} elements {:>12}\n", name, total.n_tensors, total.n_elements,
                        bytes_text(total.bytes)));
    }
  }
}

void print_text(const GgufFile& file, const Json& json, bool with_tensors) {
  print(fmt::format("{}\n", file.path()));
  print(fmt::format("  architecture {}, GGUF version {}, {} in {} tensors of {} parameters\n",
                    printable(json["architecture"].get<std::string>()), file.version(),
                    bytes_text(static_cast<int64_t>(file.file_bytes())), file.tensors().size(),
                    json["parameters"].get<int64_t>()));
  const int64_t stamp = json["hadamard"];
  print(stamp ? fmt::format("  Hadamard-rotated in blocks of {}\n", stamp) : "  not rotated\n");
  const Json& memory = json["memory"];
  print(fmt::format("  memory: weights {}", bytes_text(memory["weights"])));
  if (memory.contains("context_per_1024_tokens")) {
    print(fmt::format(", caches {} per {} tokens (f16), states {} per sequence",
                      bytes_text(memory["context_per_1024_tokens"]), kContextStep, bytes_text(memory["per_sequence"])));
  }
  print("\n");
  if (!json["problem"].is_null()) print(fmt::format("  can't be run: {}\n", json["problem"].get<std::string>()));
  print("metadata:\n");
  for (const auto& [key, value] : json["metadata"].items()) {
    const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    print(fmt::format("  {} = {}\n", printable(key), text.size() > 100 ? text.substr(0, 100) + "..." : text));
  }
  print_totals(file, json["tensors"]);
  if (with_tensors) {
    print("tensors:\n");
    print_tensors(json["tensors"]);
  }
}

}  // namespace

int cmd_inspect(const Options& options) {
  const GgufFile file = GgufFile::open(options.files.front());
  Weights weights(file, W4a4::automatic);
  const Json json = document(file, weights);
  if (options.json) {
    print_json(json);
  } else {
    print_text(file, json, options.tensors);
  }
  return 0;
}

}  // namespace onebit
