#include "kernels/reference/reference_backend.h"

#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/quant/block_formats.h"
#include "kernels/quant/dequantize.h"
#include "kernels/reference/reference_ops.h"

namespace shoal::kernels {
namespace {

using reference::ReferenceWeight;

// (memcpy refuses null pointers, even for no bytes.)
void Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

class ReferenceBuffer final : public Buffer {
 public:
  ReferenceBuffer(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  ~ReferenceBuffer() override { ::operator delete (data_, std::align_val_t{64}); }
  ReferenceBuffer(const ReferenceBuffer&) = delete;
  ReferenceBuffer& operator=(const ReferenceBuffer&) = delete;
  void* data() const override { return data_; }
  size_t size_bytes() const override { return bytes_; }

 private:
  void* const data_;
  const size_t bytes_;
};

class ReferenceMatrix final : public PackedMatrix {
 public:
  explicit ReferenceMatrix(ReferenceWeight weight) : weight_(std::move(weight)) {}
  const PackedWeight* weight() const override {
    return reinterpret_cast<const PackedWeight*>(&weight_);
  }
  int64_t rows() const override { return weight_.rows; }
  int64_t cols() const override { return weight_.cols; }
  bool quantized() const override { return weight_.quantized; }
  size_t size_bytes() const override { return weight_.values.size() * sizeof(float); }

 private:
  const ReferenceWeight weight_;
};

class ReferenceBackend final : public Backend {
 public:
  absl::string_view name() const override { return "reference"; }
  absl::string_view numerics_id() const override { return "reference-1"; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes, absl::string_view what) override {
    void* data = ::operator new (bytes, std::align_val_t{64}, std::nothrow);
    if (data == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot get ", bytes, " bytes of memory for ", what));
    }
    return std::make_unique<ReferenceBuffer>(data, bytes);
  }

  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const WeightSlice& slice) override {
    if (!IsWeightType(slice.type)) {
      return absl::InvalidArgumentError(
          absl::StrCat("weights of type ", TraitsOf(slice.type).name, " cannot be packed"));
    }
    ReferenceWeight weight;
    weight.quantized = IsQuantized(slice.type);
    if (weight.quantized && (slice.col_begin % 32 != 0 || slice.col_end % 32 != 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("columns ", slice.col_begin, "..", slice.col_end,
                       " cut a block of 32 of a quantised weight; cut at multiples of 32"));
    }
    weight.rows = slice.row_end - slice.row_begin;
    weight.cols = slice.col_end - slice.col_begin;
    weight.values.reserve(weight.rows * weight.cols);
    std::vector<float> row(slice.cols);
    for (int64_t r = slice.row_begin; r < slice.row_end; ++r) {
      const char* from = static_cast<const char*>(slice.data) + r * slice.row_bytes;
      DequantizeRow(slice.type, from, row.data(), slice.cols);
      weight.values.insert(weight.values.end(), row.begin() + slice.col_begin,
                           row.begin() + slice.col_end);
    }
    return std::make_unique<ReferenceMatrix>(std::move(weight));
  }

  void Upload(void* device, const void* host, size_t bytes) override { Copy(device, host, bytes); }
  void Download(void* host, const void* device, size_t bytes) override {
    Copy(host, device, bytes);
  }
  void Synchronize() override {}

  void Embed(const EmbedArgs& args) override { reference::Embed(args); }
  void RmsNorm(const RmsNormArgs& args) override { reference::RmsNorm(args); }
  void Quantize(const QuantizeArgs& args) override { reference::Quantize(args); }
  void MatMul(const MatMulArgs& args) override { reference::MatMul(args); }
  void JoinAdd(const JoinAddArgs& args) override { reference::JoinAdd(args); }
  void Rope(const RopeArgs& args) override { reference::Rope(args); }
  void KvStore(const KvStoreArgs& args) override { reference::KvStore(args); }
  void Attention(const AttentionArgs& args) override { reference::Attention(args); }
  void SwiGlu(const SwiGluArgs& args) override { reference::SwiGlu(args); }
  void GatherRows(const GatherRowsArgs& args) override { reference::GatherRows(args); }
};

}  // namespace

std::unique_ptr<Backend> NewReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace shoal::kernels
