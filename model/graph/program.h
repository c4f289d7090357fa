#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/ops.h"
#include "model/graph/graph.h"

namespace shoal::graph {

// What a step may need at most; workspaces are planned for it.
struct ProgramLimits {
  int64_t max_batch_tokens = 512;
  int64_t max_output_rows = 64;
  int64_t max_seq_len = 0;  // positions of the rope table
};

// Where a value lies in the workspace. Offsets are in bytes, multiples of 64; strides in columns.

// f32 rows; row r begins at offset + (part * rows + r * stride) * 4 with part counted in columns:
// partial p of a row-parallel product of width w begins p * rows * w columns after the offset.
struct RowsRef {
  int64_t offset = -1;  // -1: not there
  int64_t stride = 0;
  int64_t width = 0;
  int64_t first_part = 0;  // kPartials: of all shards' parts, the first that is written here

  bool present() const { return offset >= 0; }
};

struct QuantizedRef {
  int64_t q = -1;  // -1: not there
  int64_t scale = -1;
  int64_t sum = -1;
  int64_t width = 0;

  bool present() const { return q >= 0; }
};

// The instructions: kernels' argument structs with offsets for pointers.

struct EmbedStep {
  std::string table;  // a tensor of the file
  RowsRef out = {};
};

struct RmsNormStep {
  RowsRef x = {};
  ConstantId weight = kNoConstant;
  float eps = 0;
  int64_t groups = 1;
  RowsRef out = {};
  QuantizedRef quantized = {};
};

struct QuantizeStep {
  RowsRef x = {};
  QuantizedRef out = {};
};

struct MatMulStep {
  RowsRef x = {};
  QuantizedRef xq = {};
  std::vector<int32_t> segments = {};  // indices into Program::matrices
  ConstantId bias = kNoConstant;
  kernels::KSplit split = {};
  RowsRef out = {};
};

struct RopeStep {
  RowsRef x = {};
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t rope_dim = 0;
  kernels::RopeStyle style{};
  ConstantId table = kNoConstant;
};

struct KvStoreStep {
  RowsRef k = {};
  RowsRef v = {};
};

struct AttentionStep {
  RowsRef q = {};
  std::vector<int32_t> kv_head_of = {};
  float scale = 0;
  RowsRef out = {};
};

struct SwiGluStep {
  RowsRef gate_up = {};  // gate, then up; width is that of one of them
  RowsRef out = {};
  QuantizedRef quantized = {};
};

// Completes `parts` in place: every shard has written its own ones.
struct AllGatherStep {
  RowsRef parts = {};
  std::vector<int64_t> parts_of;  // for each shard
};

struct JoinAddStep {
  RowsRef parts = {};
  int64_t num_parts = 1;
  std::vector<kernels::JoinStep> steps = {};
  RowsRef residual = {};
  RowsRef out = {};
  ConstantId norm_weight = kNoConstant;
  float eps = 0;
  RowsRef normed = {};
  QuantizedRef quantized = {};
};

struct GatherRowsStep {
  RowsRef x = {};
  RowsRef out = {};
};

// To the same shard of the next pipeline stage.
struct SendStep {
  RowsRef x = {};
};

// From the same shard of the stage before.
struct ReceiveStep {
  RowsRef out = {};
};

using Step = std::variant<EmbedStep, RmsNormStep, QuantizeStep, MatMulStep, RopeStep, KvStoreStep,
                          AttentionStep, SwiGluStep, AllGatherStep, JoinAddStep, GatherRowsStep,
                          SendStep, ReceiveStep>;

struct Instruction {
  Step step;
  RowSet rows = RowSet::kTokens;
  int32_t layer = -1;
  std::string name;  // "layer 3 MatMul query+key+value": for people
};

// A shard's forward pass as a flat list over planned memory. Immutable once lowered; holds no
// weights: they are named, packed by the executor.
struct Program {
  std::string architecture;
  ShardInfo shard;
  StageInfo stage;
  ProgramLimits limits;
  int64_t num_layers = 0;    // of this stage
  int64_t num_kv_heads = 0;  // of this shard
  int64_t head_dim = 0;
  std::vector<Instruction> instructions;
  std::vector<WeightUse> matrices;  // to pack
  std::vector<Constant> constants;  // to upload
  // [output rows, width]; width 0: this shard holds no chunk. Not there but in the last stage.
  RowsRef logits = {};
  int64_t vocab_begin = 0;      // the token of the first column of the logits
  int64_t workspace_bytes = 0;  // peak
  int64_t unplanned_bytes = 0;  // what one buffer for each value would take

  int64_t ConstantBytes() const;
};

}  // namespace shoal::graph
