// Parses arbitrary bytes as a GGUF file and touches all that a loader would: every metadata entry
// in every type it could be asked for, the fingerprint, and the first row of every tensor.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/quant/dequantize.h"
#include "kernels/quant/unpack.h"
#include "model/formats/gguf.h"

namespace shoal::model {
namespace {

constexpr int64_t kMaxRow = 1 << 16;  // enough for any row of a small input

void TouchMetadata(const GgufFile& file) {
  for (const GgufMetadata& entry : file.metadata()) {
    (void)file.GetU64(entry.key);
    (void)file.GetF32(entry.key);
    (void)file.GetBool(entry.key);
    (void)file.GetString(entry.key);
    (void)file.GetF32Array(entry.key);
    (void)file.GetI32Array(entry.key);
    (void)file.GetU32Array(entry.key);
    const auto strings = file.GetStringArray(entry.key);
    size_t bytes = 0;
    if (strings.ok()) {
      for (absl::string_view text : *strings) {
        bytes += std::string(text).size();
      }
    }
    if (bytes > entry.value.size()) {
      __builtin_trap();
    }
  }
}

void TouchTensors(const GgufFile& file) {
  for (const TensorInfo& info : file.tensors()) {
    const auto tensor = file.RequireTensor(info.name);
    if (!tensor.ok() || (*tensor)->cols() > kMaxRow) {
      continue;
    }
    const int64_t cols = (*tensor)->cols();
    std::vector<float> row(static_cast<size_t>(cols));
    kernels::DequantizeRow((*tensor)->dtype, file.data(**tensor), row.data(), cols);
    if (kernels::IsQuantized((*tensor)->dtype)) {
      std::vector<kernels::Unpacked32> blocks(static_cast<size_t>(cols / 32));
      kernels::UnpackRow((*tensor)->dtype, file.data(**tensor), blocks.data(), cols);
    }
  }
}

}  // namespace
}  // namespace shoal::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = shoal::model::GgufFile::Parse({data, size}, "fuzz");
  if (file.ok()) {
    shoal::model::TouchMetadata(**file);
    shoal::model::TouchTensors(**file);
    (void)(*file)->Fingerprint();
  }
  return 0;
}
