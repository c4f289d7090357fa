#include "kernels/reference/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/quant/dequantize.h"
#include "kernels/quant/float16.h"

namespace shoal::kernels::reference {
namespace {

// Quantises one row of f32 values, as QuantizedRows says.
void QuantizeRow(const float* x, const QuantizedRows& out, int64_t row) {
  for (int64_t block = 0; block < out.width / 32; ++block) {
    const float* values = x + block * 32;
    const int64_t at = block * out.rows + row;
    if (!std::all_of(values, values + 32, [](float x) { return std::isfinite(x); })) {
      std::fill_n(out.q + at * 32, 32, int8_t{0});
      out.scale[at] = std::numeric_limits<float>::quiet_NaN();
      out.sum[at] = 0;
      continue;
    }
    float max = 0;
    for (int k = 0; k < 32; ++k) {
      max = std::max(max, std::fabs(values[k]));
    }
    const bool tiny = max < 1e-30f;
    int32_t sum = 0;
    for (int k = 0; k < 32; ++k) {
      const float scaled = tiny ? 0.0f : values[k] * (127.0f / max);
      out.q[at * 32 + k] = static_cast<int8_t>(std::nearbyintf(scaled));
      sum += out.q[at * 32 + k];
    }
    out.scale[at] = tiny ? 0.0f : max / 127.0f;
    out.sum[at] = sum;
  }
}

// x / sqrt(mean(x^2) + eps) * weight, rounded to f32; NaN where the squares overflow an f32.
std::vector<float> NormRow(const float* x, const float* weight, int64_t width, double eps) {
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) {
    squares += static_cast<double>(x[i]) * x[i];
  }
  const double rms = squares <= std::numeric_limits<float>::max()
                         ? std::sqrt(squares / static_cast<double>(width) + eps)
                         : std::numeric_limits<double>::quiet_NaN();
  std::vector<float> result(width);
  for (int64_t i = 0; i < width; ++i) {
    result[i] = static_cast<float>(x[i] / rms * weight[i]);
  }
  return result;
}

// One element of a weight times one of the activations' row.
double Product(const MatMulArgs& args, const ReferenceWeight& weight, int64_t n, int64_t k,
               int64_t row) {
  const double w = weight.values[n * weight.cols + k];
  if (!weight.quantized) {
    return w * args.x[row * args.x_stride + k];
  }
  const int64_t at = k / 32 * args.xq.rows + row;
  return w * args.xq.q[at * 32 + k % 32] * args.xq.scale[at];
}

// The roots of one output.
std::vector<double> Roots(const MatMulArgs& args, const ReferenceWeight& weight, int64_t n,
                          int64_t row) {
  const KSplit& split = args.split;
  const int32_t num_leaves = std::max(split.num_leaves, 1);
  std::vector<double> leaves(num_leaves, 0.0);
  int64_t begin = 0;
  for (int32_t leaf = 0; leaf < num_leaves; ++leaf) {
    const int64_t end = split.num_leaves > 1 ? split.leaf_ends[leaf] : weight.cols;
    for (int64_t k = begin; k < end; ++k) {
      leaves[leaf] += Product(args, weight, n, k, row);
    }
    begin = end;
  }
  if (split.num_leaves <= 1) {
    return leaves;
  }
  for (int32_t i = 0; i < split.num_steps; ++i) {
    leaves[split.steps[i].dst] += leaves[split.steps[i].src];
  }
  std::vector<double> roots;
  for (int32_t i = 0; i < split.num_roots; ++i) {
    roots.push_back(leaves[split.roots[i]]);
  }
  return roots;
}

// Element `index` (0 .. 2 * 16 * head_dim) of page and KV head.
struct PageElement {
  const KvPages& pages;
  int64_t at;

  float Read() const {
    if (pages.type == KvType::kF16) {
      return F16ToF32(static_cast<const uint16_t*>(pages.base)[at]);
    }
    return static_cast<const float*>(pages.base)[at];
  }
  void Write(float value) const {
    if (pages.type == KvType::kF16) {
      static_cast<uint16_t*>(pages.base)[at] = F32ToF16(value);
    } else {
      static_cast<float*>(pages.base)[at] = value;
    }
  }
};

PageElement KeyAt(const KvPages& pages, const int32_t* table, int64_t head, int64_t position,
                  int64_t d) {
  const int64_t page = (table[position / kPageTokens] * int64_t{pages.kv_heads} + head) * 2;
  return {pages, page * kPageTokens * pages.head_dim + d * kPageTokens + position % kPageTokens};
}

PageElement ValueAt(const KvPages& pages, const int32_t* table, int64_t head, int64_t position,
                    int64_t d) {
  const int64_t page = (table[position / kPageTokens] * int64_t{pages.kv_heads} + head) * 2 + 1;
  return {pages, (page * kPageTokens + position % kPageTokens) * int64_t{pages.head_dim} + d};
}

// Calls visit(seq, row) for every row of a step.
template <class Visit>
void ForEachRow(const StepLayout& layout, const Visit& visit) {
  for (int32_t seq = 0; seq < layout.num_seqs; ++seq) {
    for (int64_t row = layout.seq_row_begin[seq]; row < layout.seq_row_begin[seq + 1]; ++row) {
      visit(seq, row);
    }
  }
}

}  // namespace

void Embed(const EmbedArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    DequantizeRow(args.type,
                  static_cast<const char*>(args.table) + args.tokens[row] * args.row_bytes,
                  args.out + row * args.width, args.width);
  }
}

void RmsNorm(const RmsNormArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t group = 0; group < args.groups; ++group) {
      const float* x = args.x + row * args.x_stride + group * args.width;
      const std::vector<float> normed = NormRow(x, args.weight, args.width, args.eps);
      if (args.quantized.q != nullptr) {
        QuantizeRow(normed.data(), args.quantized, row);
      }
      if (args.out != nullptr) {
        std::copy(normed.begin(), normed.end(),
                  args.out + row * args.out_stride + group * args.width);
      }
    }
  }
}

void Quantize(const QuantizeArgs& args) {
  for (int64_t row = 0; row < args.out.rows; ++row) {
    QuantizeRow(args.x + row * args.x_stride, args.out, row);
  }
}

void MatMul(const MatMulArgs& args) {
  int64_t first = 0;
  for (int32_t s = 0; s < args.num_segments; ++s) {
    const auto& weight = *reinterpret_cast<const ReferenceWeight*>(args.segments[s]);
    for (int64_t row = 0; row < args.rows; ++row) {
      for (int64_t n = 0; n < weight.rows; ++n) {
        const std::vector<double> roots = Roots(args, weight, n, row);
        const double bias = args.bias != nullptr ? args.bias[first + n] : 0.0;
        for (size_t root = 0; root < roots.size(); ++root) {
          args.out[root * args.root_stride + row * args.out_stride + first + n] =
              static_cast<float>(roots[root] + bias);
        }
      }
    }
    first += weight.rows;
  }
}

void JoinAdd(const JoinAddArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t at = row * args.width; at < (row + 1) * args.width; ++at) {
      std::vector<double> parts;
      for (int32_t i = 0; i < args.num_parts; ++i) {
        parts.push_back(args.parts[i][at]);
      }
      for (int32_t i = 0; i < args.num_steps; ++i) {
        parts[args.steps[i].dst] += parts[args.steps[i].src];
      }
      args.out[at] = static_cast<float>(args.residual[at] + parts[0]);
    }
    if (args.norm_weight == nullptr) {
      continue;
    }
    const std::vector<float> normed =
        NormRow(args.out + row * args.width, args.norm_weight, args.width, args.eps);
    if (args.normed != nullptr) {
      std::copy(normed.begin(), normed.end(), args.normed + row * args.width);
    }
    if (args.quantized.q != nullptr) {
      QuantizeRow(normed.data(), args.quantized, row);
    }
  }
}

void Rope(const RopeArgs& args) {
  const bool adjacent = args.style == RopeStyle::kAdjacent;
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* table = args.table + int64_t{args.positions[row]} * args.rope_dim;
    for (int32_t head = 0; head < args.heads; ++head) {
      float* x = args.x + row * args.x_stride + int64_t{head} * args.head_dim;
      for (int32_t i = 0; i < args.rope_dim / 2; ++i) {
        float& a = x[adjacent ? 2 * i : i];
        float& b = x[adjacent ? 2 * i + 1 : i + args.rope_dim / 2];
        const double cosine = table[2 * i];
        const double sine = table[2 * i + 1];
        const double turned_a = a * cosine - b * sine;
        const double turned_b = a * sine + b * cosine;
        a = static_cast<float>(turned_a);
        b = static_cast<float>(turned_b);
      }
    }
  }
}

void KvStore(const KvStoreArgs& args) {
  ForEachRow(args.layout, [&](int32_t seq, int64_t row) {
    const int32_t* table = args.layout.block_tables[seq];
    const int64_t position = args.layout.positions[row];
    for (int64_t head = 0; head < args.pages.kv_heads; ++head) {
      for (int64_t d = 0; d < args.pages.head_dim; ++d) {
        const int64_t from = row * args.stride + head * args.pages.head_dim + d;
        KeyAt(args.pages, table, head, position, d).Write(args.k[from]);
        ValueAt(args.pages, table, head, position, d).Write(args.v[from]);
      }
    }
  });
}

void Attention(const AttentionArgs& args) {
  const int64_t head_dim = args.pages.head_dim;
  ForEachRow(args.layout, [&](int32_t seq, int64_t row) {
    const int32_t* table = args.layout.block_tables[seq];
    const int64_t length = args.layout.positions[row] + 1;
    for (int32_t head = 0; head < args.heads; ++head) {
      const int64_t kv_head = args.kv_head_of[head];
      const float* q = args.q + row * args.q_stride + head * head_dim;
      std::vector<double> weights(length, 0.0);
      for (int64_t p = 0; p < length; ++p) {
        for (int64_t d = 0; d < head_dim; ++d) {
          weights[p] += double{q[d]} * KeyAt(args.pages, table, kv_head, p, d).Read();
        }
        weights[p] *= args.scale;
      }
      const double max = *std::max_element(weights.begin(), weights.end());
      double sum = 0;
      for (double& weight : weights) {
        weight = std::exp(weight - max);
        sum += weight;
      }
      for (int64_t d = 0; d < head_dim; ++d) {
        double value = 0;
        for (int64_t p = 0; p < length; ++p) {
          value += weights[p] * ValueAt(args.pages, table, kv_head, p, d).Read();
        }
        args.out[row * args.out_stride + head * head_dim + d] = static_cast<float>(value / sum);
      }
    }
  });
}

void SwiGlu(const SwiGluArgs& args) {
  std::vector<float> result(args.width);
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* gate = args.gate_up + row * args.stride;
    const float* up = gate + args.width;
    for (int64_t i = 0; i < args.width; ++i) {
      result[i] = static_cast<float>(gate[i] / (1 + std::exp(-double{gate[i]})) * up[i]);
    }
    if (args.out != nullptr) {
      std::copy(result.begin(), result.end(), args.out + row * args.width);
    }
    if (args.quantized.q != nullptr) {
      QuantizeRow(result.data(), args.quantized, row);
    }
  }
}

void GatherRows(const GatherRowsArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    std::memcpy(args.out + row * args.width, args.x + args.indices[row] * args.width,
                args.width * sizeof(float));
  }
}

}  // namespace shoal::kernels::reference
