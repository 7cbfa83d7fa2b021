// libFuzzer target: opens arbitrary bytes as a GGUF file and touches everything that a caller may touch.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "gguf/blocks.h"
#include "gguf/file.h"
#include "gguf/hadamard.h"

namespace {

void touch(const onebit::GgufFile& file) {
  for (const onebit::MetaEntry& entry : file.metadata()) {
    try {
      file.get<int32_t>(entry.key);
      file.get<std::string>(entry.key);
    } catch (const onebit::Error&) {
    }
    try {
      file.get<std::vector<float>>(entry.key);
      file.get<std::vector<std::string>>(entry.key);
    } catch (const onebit::Error&) {
    }
  }
  std::vector<float> row;
  for (const onebit::TensorInfo& tensor : file.tensors()) {
    if (!onebit::type_info(tensor.type).decodable) continue;
    row.resize(static_cast<size_t>(tensor.n_cols()));
    onebit::decode_row(tensor.type, tensor.data.data() + (tensor.n_rows() - 1) * tensor.row_bytes(), row.data(),
                       tensor.n_cols());
  }
  onebit::check_hadamard_tensors(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    touch(onebit::GgufFile::from_memory({data, size}));
  } catch (const onebit::Error&) {
  }
  return 0;
}
