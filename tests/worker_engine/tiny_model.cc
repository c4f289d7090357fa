#include "tests/worker_engine/tiny_model.h"

#include <glog/logging.h>

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/quant/float16.h"
#include "kernels/quant/quantize.h"

namespace shoal::worker {
namespace {

using kernels::DType;

class TinyWriter {
 public:
  explicit TinyWriter(const TinyModel& tiny) : tiny_(tiny), random_(tiny.seed) {}

  model::GgufDocument Run() {
    Metadata();
    Matrix("token_embd.weight", tiny_.vocab, tiny_.hidden, tiny_.matrix_type, 1.0f);
    for (int layer = 0; layer < tiny_.layers; ++layer) {
      Layer(absl::StrCat("blk.", layer, "."));
    }
    Norm("output_norm.weight", tiny_.hidden);
    if (!tiny_.tied_head) {
      Matrix("output.weight", tiny_.vocab, tiny_.hidden);
    }
    if (tiny_.rope_factors) {
      Vector("rope_freqs.weight", tiny_.head_dim / 2, 1.0f, 8.0f);
    }
    return std::move(document_);
  }

 private:
  void Metadata() {
    const std::string& arch = tiny_.architecture;
    document_.AddString("general.architecture", arch);
    document_.AddU32(arch + ".block_count", tiny_.layers);
    document_.AddU32(arch + ".embedding_length", tiny_.hidden);
    document_.AddU32(arch + ".feed_forward_length", tiny_.ffn);
    document_.AddU32(arch + ".context_length", tiny_.context);
    document_.AddU32(arch + ".attention.head_count", tiny_.heads);
    document_.AddU32(arch + ".attention.head_count_kv", tiny_.kv_heads);
    document_.AddU32(arch + ".attention.key_length", tiny_.head_dim);
    document_.AddU32(arch + ".attention.value_length", tiny_.head_dim);
    document_.AddF32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
    document_.AddF32(arch + ".rope.freq_base", tiny_.rope_base);
  }

  void Layer(const std::string& prefix) {
    const int q = tiny_.heads * tiny_.head_dim;
    const int kv = tiny_.kv_heads * tiny_.head_dim;
    Norm(prefix + "attn_norm.weight", tiny_.hidden);
    Matrix(prefix + "attn_q.weight", q, tiny_.hidden);
    Matrix(prefix + "attn_k.weight", kv, tiny_.hidden);
    Matrix(prefix + "attn_v.weight", kv, tiny_.hidden,
           tiny_.mixed_types ? tiny_.value_type : tiny_.matrix_type, 1.7f);
    if (tiny_.qkv_bias) {
      Vector(prefix + "attn_q.bias", q, -0.5f, 0.5f);
      Vector(prefix + "attn_k.bias", kv, -0.5f, 0.5f);
      Vector(prefix + "attn_v.bias", kv, -0.5f, 0.5f);
    }
    if (tiny_.architecture == "qwen3") {
      Norm(prefix + "attn_q_norm.weight", tiny_.head_dim);
      Norm(prefix + "attn_k_norm.weight", tiny_.head_dim);
    }
    Matrix(prefix + "attn_output.weight", tiny_.hidden, q);
    Norm(prefix + "ffn_norm.weight", tiny_.hidden);
    Matrix(prefix + "ffn_gate.weight", tiny_.ffn, tiny_.hidden);
    Matrix(prefix + "ffn_up.weight", tiny_.ffn, tiny_.hidden);
    Matrix(prefix + "ffn_down.weight", tiny_.hidden, tiny_.ffn);
  }

  std::vector<float> Uniform(size_t count, float low, float high) {
    std::uniform_real_distribution<float> uniform(low, high);
    std::vector<float> values(count);
    for (float& value : values) {
      value = uniform(random_);
    }
    return values;
  }

  void Vector(const std::string& name, int size, float low, float high) {
    document_.AddTensor(name, DType::kF32, {static_cast<uint64_t>(size)}, Uniform(size, low, high));
  }

  void Norm(const std::string& name, int size) { Vector(name, size, 0.5f, 1.5f); }

  void Matrix(const std::string& name, int rows, int cols) {
    Matrix(name, rows, cols, tiny_.matrix_type, 1.7f);
  }

  // Uniform values of standard deviation about gain / sqrt(3 * cols).
  void Matrix(const std::string& name, int rows, int cols, DType type, float gain) {
    const uint64_t dims[] = {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)};
    const float limit = gain / std::sqrt(static_cast<float>(cols));
    if (kernels::CanQuantize(type)) {
      document_.AddTensor(name, type, dims,
                          Uniform(static_cast<size_t>(rows) * cols, -limit, limit));
    } else {
      document_.AddRawTensor(name, type, dims, KBlocks(type, rows, cols, limit));
    }
  }

  // K-quants of random bits whose scales keep values within about +-limit.
  std::string KBlocks(DType type, int rows, int cols, float limit) {
    std::string bytes(kernels::RowBytes(type, cols) * rows, '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random_());
    }
    const size_t block_bytes = kernels::TraitsOf(type).bytes_per_block;
    for (size_t begin = 0; begin < bytes.size(); begin += block_bytes) {
      char* block = bytes.data() + begin;
      switch (type) {
        case DType::kQ4_K:
          SetScales(reinterpret_cast<kernels::BlockQ4_K*>(block), limit / (63 * 8));
          break;
        case DType::kQ5_K:
          SetScales(reinterpret_cast<kernels::BlockQ5_K*>(block), limit / (63 * 16));
          break;
        case DType::kQ6_K:
          reinterpret_cast<kernels::BlockQ6_K*>(block)->d = kernels::F32ToF16(limit / (128 * 32));
          break;
        default:
          LOG(FATAL) << "no block maker for type " << static_cast<int>(type);
      }
    }
    return bytes;
  }

  template <typename Block>
  static void SetScales(Block* block, float d) {
    block->d = kernels::F32ToF16(d);
    block->dmin = kernels::F32ToF16(d * 8);
  }

  const TinyModel& tiny_;
  std::mt19937 random_;
  model::GgufDocument document_;
};

}  // namespace

model::GgufDocument MakeTinyDocument(const TinyModel& tiny) { return TinyWriter(tiny).Run(); }

std::unique_ptr<model::GgufFile> MakeTinyFile(const TinyModel& tiny) {
  const std::string bytes = MakeTinyDocument(tiny).Serialize();
  auto file = model::GgufFile::Parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                                     "tiny.gguf");
  CHECK(file.ok()) << file.status();
  return *std::move(file);
}

}  // namespace shoal::worker
