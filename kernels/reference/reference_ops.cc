#include "kernels/reference/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/quant/dequantize.h"
#include "kernels/quant/float16.h"
#include "kernels/quant/kv_type.h"

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

// A KV head of a page.
struct PageHead {
  const KvPages& pages;
  char* data;

  int64_t ScaleOffset() const { return int64_t{2} * kPageTokens * pages.head_dim; }

  // Element `index` of [0, 2 * 16 * head_dim), the scale of int8 aside.
  float Read(int64_t index) const {
    switch (pages.type) {
      case KvType::kF32:
        return reinterpret_cast<const float*>(data)[index];
      case KvType::kF16:
        return F16ToF32(reinterpret_cast<const uint16_t*>(data)[index]);
      case KvType::kBf16:
        return BF16ToF32(reinterpret_cast<const uint16_t*>(data)[index]);
      case KvType::kInt8:
        break;
    }
    return reinterpret_cast<const int8_t*>(data)[index];
  }
  void Write(int64_t index, float value) const {
    switch (pages.type) {
      case KvType::kF32:
        reinterpret_cast<float*>(data)[index] = value;
        return;
      case KvType::kF16:
        reinterpret_cast<uint16_t*>(data)[index] = F32ToF16(value);
        return;
      case KvType::kBf16:
        reinterpret_cast<uint16_t*>(data)[index] = F32ToBF16(value);
        return;
      case KvType::kInt8:
        reinterpret_cast<int8_t*>(data)[index] = static_cast<int8_t>(value);
    }
  }
  // The scale at `slot` of K's 16 and V's 16.
  float& ScaleAt(int64_t slot) const {
    return reinterpret_cast<float*>(data + ScaleOffset())[slot];
  }
};

PageHead HeadOf(const KvPages& pages, const int32_t* table, int64_t head, int64_t position) {
  const int64_t bytes = KvPageBytes(pages.type, 1, pages.head_dim);
  const int64_t page = table[position / kPageTokens];
  return {pages, static_cast<char*>(pages.base) + (page * pages.kv_heads + head) * bytes};
}

// Where K or V of a position lies in its head: value d at first + d * stride.
struct TokenPlace {
  int64_t first;
  int64_t stride;
  int64_t scale_slot;
};
TokenPlace KeyPlace(int64_t position) {
  return {position % kPageTokens, kPageTokens, position % kPageTokens};
}
TokenPlace ValuePlace(int64_t position, int64_t head_dim) {
  const int64_t slot = position % kPageTokens;
  return {(kPageTokens + slot) * head_dim, 1, kPageTokens + slot};
}

void StoreToken(const PageHead& head, TokenPlace place, const float* x) {
  const int64_t head_dim = head.pages.head_dim;
  const bool is_int8 = head.pages.type == KvType::kInt8;
  float inverse = 0;
  if (is_int8) {
    float max = 0;
    bool finite = true;
    for (int64_t d = 0; d < head_dim; ++d) {
      max = std::max(max, std::fabs(x[d]));
      finite &= std::isfinite(x[d]);
    }
    const bool tiny = max < 1e-30f;
    inverse = tiny || !finite ? 0.0f : 127.0f / max;
    head.ScaleAt(place.scale_slot) =
        finite ? (tiny ? 0.0f : max / 127.0f) : std::numeric_limits<float>::quiet_NaN();
  }
  for (int64_t d = 0; d < head_dim; ++d) {
    const float value = !is_int8 ? x[d] : inverse == 0 ? 0.0f : std::nearbyintf(x[d] * inverse);
    head.Write(place.first + d * place.stride, value);
  }
}

std::vector<double> LoadToken(const PageHead& head, TokenPlace place) {
  std::vector<double> result(head.pages.head_dim);
  const double scale = head.pages.type == KvType::kInt8 ? head.ScaleAt(place.scale_slot) : 1.0f;
  for (size_t d = 0; d < result.size(); ++d) {
    result[d] = scale * head.Read(place.first + static_cast<int64_t>(d) * place.stride);
  }
  return result;
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
  const int64_t head_dim = args.pages.head_dim;
  ForEachRow(args.layout, [&](int32_t seq, int64_t row) {
    const int64_t position = args.layout.positions[row];
    for (int64_t h = 0; h < args.pages.kv_heads; ++h) {
      const PageHead head = HeadOf(args.pages, args.layout.block_tables[seq], h, position);
      const int64_t from = row * args.stride + h * head_dim;
      StoreToken(head, KeyPlace(position), args.k + from);
      StoreToken(head, ValuePlace(position, head_dim), args.v + from);
    }
  });
}

void Attention(const AttentionArgs& args) {
  const int64_t head_dim = args.pages.head_dim;
  ForEachRow(args.layout, [&](int32_t seq, int64_t row) {
    const int32_t* table = args.layout.block_tables[seq];
    const int64_t length = args.layout.positions[row] + 1;
    for (int32_t h = 0; h < args.heads; ++h) {
      const auto head_at = [&](int64_t p) {
        return HeadOf(args.pages, table, args.kv_head_of[h], p);
      };
      const float* q = args.q + row * args.q_stride + h * head_dim;
      std::vector<double> weights(length, 0.0);
      for (int64_t p = 0; p < length; ++p) {
        const std::vector<double> key = LoadToken(head_at(p), KeyPlace(p));
        for (int64_t d = 0; d < head_dim; ++d) {
          weights[p] += q[d] * key[d];
        }
        weights[p] *= args.scale;
      }
      const double max = *std::max_element(weights.begin(), weights.end());
      double sum = 0;
      std::vector<double> result(head_dim, 0.0);
      for (int64_t p = 0; p < length; ++p) {
        const double weight = std::exp(weights[p] - max);
        const std::vector<double> value = LoadToken(head_at(p), ValuePlace(p, head_dim));
        sum += weight;
        for (int64_t d = 0; d < head_dim; ++d) {
          result[d] += weight * value[d];
        }
      }
      for (int64_t d = 0; d < head_dim; ++d) {
        args.out[row * args.out_stride + h * head_dim + d] = static_cast<float>(result[d] / sum);
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
