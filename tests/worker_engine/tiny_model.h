#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/quant/block_formats.h"
#include "model/formats/gguf.h"
#include "model/formats/gguf_writer.h"

namespace shoal::worker {

// A small model with random weights, varied enough that logits depend on every part of it.
struct TinyModel {
  std::string architecture = "llama";
  int layers = 2;
  int hidden = 256;
  int heads = 8;
  int kv_heads = 2;
  int head_dim = 32;
  int ffn = 384;
  int vocab = 520;  // three chunks, the last one short
  int context = 2048;
  kernels::DType matrix_type = kernels::DType::kF32;
  kernels::DType value_type = kernels::DType::kF32;  // of attn_v, which may differ from the rest
  bool mixed_types = false;                          // attn_v is value_type, else matrix_type
  bool tied_head = false;
  bool qkv_bias = false;
  bool rope_factors = false;
  float rope_base = 10000;
  uint32_t seed = 1;
};

model::GgufDocument MakeTinyDocument(const TinyModel& tiny);
std::unique_ptr<model::GgufFile> MakeTinyFile(const TinyModel& tiny);

}  // namespace shoal::worker
