// Any bytes as a tokenizer.json: a clear error or a tokenizer that works.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "text/hf_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  onebit::HfTokenizerFiles files;
  files.tokenizer.assign(reinterpret_cast<const char*>(bytes), size);
  files.tokenizer_config = R"({"bos_token": "a", "eos_token": {"content": "b"}, "add_bos_token": true})";
  files.config = R"({"pad_token_id": 2})";
  try {
    const onebit::Tokenizer tokenizer(onebit::tokenizer_data_from_hf(files));
    const auto ids = tokenizer.encode("a b <s>\xC3", onebit::ParseSpecial::yes);
    tokenizer.decode(ids);
  } catch (const onebit::Error&) {
  }
  return 0;
}
