#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/ops.h"
#include "kernels/quant/block_formats.h"

// A model's forward pass as a graph in SSA form: every value is written by one node, nodes are in
// an order in which they can run. Builders write it for one device (builder.h), passes rewrite it
// (passes.h), Lower() turns it into a Program (lower.h).
namespace shoal::graph {

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;
using ConstantId = int32_t;
inline constexpr ConstantId kNoConstant = -1;

// How many rows a value has in a step: one for each token, or one for each row of the output.
enum class RowSet { kTokens, kOutputs };

enum class Form {
  kFloat,      // f32 [rows, width]
  kQuantized,  // kernels::QuantizedRows of `width` columns
  kPartials,   // f32 [parts][rows, width]: what a row-parallel product leaves to be joined
  kKv,         // no data: "the keys and values of this step are in the cache"
};

struct Value {
  Form form = Form::kFloat;
  RowSet rows = RowSet::kTokens;
  int64_t width = 0;
  int64_t parts = 1;  // kPartials
};

// A rectangle of a matrix in the model file.
struct WeightUse {
  std::string tensor;
  kernels::DType type{};
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t col_begin = 0;
  int64_t col_end = 0;

  int64_t rows() const { return row_end - row_begin; }
  int64_t cols() const { return col_end - col_begin; }
  bool operator==(const WeightUse&) const = default;
};

// Elements [begin, end) of a vector in the model file.
struct VectorUse {
  std::string tensor;
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const VectorUse&) const = default;
};

// Vectors of the model, one after the other; `constant` once FoldConstants has read them.
struct VectorInput {
  std::vector<VectorUse> parts = {};
  ConstantId constant = kNoConstant;

  bool empty() const { return parts.empty() && constant == kNoConstant; }
};

// What a product computes in the model: says how it is cut among shards.
enum class Role { kQuery, kKey, kValue, kAttentionOut, kGate, kUp, kDown, kHead };
absl::string_view RoleName(Role role);

// The ops. The comment of each lists inputs -> outputs; "?" may be kNoValue.

// () -> rows of the table for the step's tokens
struct EmbedOp {
  WeightUse table;
};

// (x) -> (normed?, quantized?); of each head by itself, in place, when per_head is set.
struct RmsNormOp {
  VectorInput weight = {};
  float eps = 0;
  bool per_head = false;
  int64_t groups = 1;  // heads if per_head
};

// (x) -> quantized
struct QuantizeOp {};

// (x?, xq?) -> y, the rows of all segments; kPartials when `split` has roots. Segments of
// quantised types read xq, the others x.
struct MatMulOp {
  std::vector<Role> roles;  // of the segments
  std::vector<WeightUse> segments;
  VectorInput bias = {};
  kernels::KSplit split = {};
};

// (x) -> columns [begin, begin + width of the output) of x, a view
struct SliceOp {
  int64_t begin = 0;
};

// (x) -> x turned, in place
struct RopeOp {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t rope_dim = 0;
  kernels::RopeStyle style{};
  double base = 0;
  float linear_factor = 1;
  std::string freq_factors = {};   // a vector of the file, or empty
  ConstantId table = kNoConstant;  // of FoldConstants: [positions, rope_dim]

  bool operator==(const RopeOp&) const = default;
};

// (k, v) -> kv
struct KvStoreOp {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};

// (q, kv) -> attention's result, a head after the other
struct AttentionOp {
  std::vector<int32_t> kv_head_of = {};  // for each query head
  int64_t head_dim = 0;
  float scale = 0;
};

// (gate, up) -> (h?, quantized?); (gate|up) when both come from one product
struct SwiGluOp {};

// (partials of this shard) -> partials of all shards, in leaf order
struct AllGatherOp {
  std::vector<int64_t> parts_of;  // for each shard
};

// (partials or a product, residual) -> (sum, normed?, quantized?); the last two when norm_weight
// is given.
struct JoinAddOp {
  std::vector<kernels::JoinStep> steps = {};
  VectorInput norm_weight = {};
  float eps = 0;
};

// (x) -> the rows of x that need output
struct GatherRowsOp {};

// (x) -> nothing: the rows go to the same shard of the next pipeline stage
struct SendOp {};

// () -> the rows that the same shard of the stage before has sent
struct ReceiveOp {};

using Op =
    std::variant<EmbedOp, RmsNormOp, QuantizeOp, MatMulOp, SliceOp, RopeOp, KvStoreOp, AttentionOp,
                 SwiGluOp, AllGatherOp, JoinAddOp, GatherRowsOp, SendOp, ReceiveOp>;
absl::string_view OpName(const Op& op);

struct Node {
  Op op;
  std::vector<ValueId> inputs;   // the number that the op documents, kNoValue where none
  std::vector<ValueId> outputs;  // likewise
  int32_t layer = -1;            // -1: outside the layers
};

// Data that is part of the graph. Nodes with equal names share one.
struct Constant {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// Which part of the model a graph computes; set by ShardTensorParallel.
struct ShardInfo {
  int tp = 1;
  int shard = 0;
};

// Which layers it computes; set by SplitPipeline. The first stage embeds, the last has the head.
struct StageInfo {
  int pp = 1;
  int stage = 0;
  int64_t first_layer = 0;  // of the model; nodes keep the model's numbers

  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage == pp - 1; }
};

// A value type: passes work on copies or in place, tests compare them.
struct Graph {
  std::string architecture;
  bool sharded = false;
  ShardInfo shard;
  StageInfo stage;
  int64_t num_layers = 0;    // of this stage
  int64_t num_kv_heads = 0;  // of this shard
  int64_t head_dim = 0;
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<Constant> constants;
  // [outputs, rows of the head held by this shard]; kNoValue: not the last stage
  ValueId logits = kNoValue;

  ValueId AddValue(const Value& value);
  const Value& value(ValueId id) const { return values[id]; }

  // Index of the node that writes a value.
  int Producer(ValueId id) const;
  // Indices of the nodes that read a value, each once, in order. The graph's output is no node.
  std::vector<int> Consumers(ValueId id) const;

  ConstantId FindConstant(absl::string_view name) const;  // kNoConstant: not there

  // CHECKs what every pass keeps: ids in range, one writer for a value, written before read.
  void Validate() const;
};

}  // namespace shoal::graph
