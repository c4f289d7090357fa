#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/formats/gguf.h"
#include "model/formats/gguf_writer.h"

namespace shoal::model {

// A small good file with every kind of metadata, from which malformed ones are made by one edit.
// Its last tensor, "blk.0.ffn_down.weight", has no padding behind it.
inline GgufDocument TinyDocument() {
  GgufDocument document;
  document.AddString("general.architecture", "llama");
  document.AddU32("general.alignment", 32);
  document.AddU32("llama.block_count", 6);
  document.AddU64("llama.context_length", 256);
  document.AddI32("llama.negative", -5);
  document.AddF32("llama.rope.freq_base", 10000.0f);
  document.AddBool("tokenizer.ggml.add_bos_token", true);
  document.AddStringArray("tokenizer.ggml.tokens", {"<unk>", "a", "", std::string("\xff\0b", 3)});
  document.AddF32Array("tokenizer.ggml.scores", {0.0f, -1.0f, -2.5f, -3.0f});
  document.AddI32Array("tokenizer.ggml.token_type", {2, 1, 1, 6});
  std::vector<float> values(256 * 4);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 64) - 31.5f;
  }
  document.AddTensor("token_embd.weight", kernels::DType::kF32, {256, 4}, values);
  document.AddTensor("blk.0.attn_q.weight", kernels::DType::kQ8_0, {256, 4}, values);
  document.AddTensor("output_norm.weight", kernels::DType::kF32, {3}, {1.0f, 2.0f, 3.0f});
  document.AddTensor("blk.0.ffn_down.weight", kernels::DType::kQ4_0, {256, 4}, values);
  return document;
}

inline absl::StatusOr<std::unique_ptr<GgufFile>> ParseBytes(const std::string& bytes) {
  return GgufFile::Parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                         "tiny.gguf");
}

inline absl::StatusOr<std::unique_ptr<GgufFile>> ParseDocument(const GgufDocument& document) {
  return ParseBytes(document.Serialize());
}

}  // namespace shoal::model
