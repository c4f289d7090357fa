#include "kernels/cpu/packed_weight.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "kernels/cpu/huge_memory.h"
#include "kernels/quant/block_formats.h"
#include "kernels/quant/float16.h"
#include "kernels/quant/unpack.h"

namespace shoal::kernels::cpu {
namespace {

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

WeightKind KindOf(DType type) {
  switch (type) {
    case DType::kQ4_0:
      return WeightKind::kNibbleF16;
    case DType::kQ4_1:
      return WeightKind::kNibbleF16F16;
    case DType::kQ4_K:
      return WeightKind::kNibbleF32F32;
    case DType::kQ8_0:
    case DType::kQ5_0:
      return WeightKind::kByteF16;
    case DType::kQ5_1:
      return WeightKind::kByteF16F16;
    case DType::kQ5_K:
      return WeightKind::kByteF32F32;
    case DType::kQ6_K:
      return WeightKind::kByteF32x2;
    case DType::kF16:
      return WeightKind::kF16;
    case DType::kBF16:
      return WeightKind::kBf16;
    case DType::kF32:
      return WeightKind::kF32;
    default:
      break;
  }
  LOG(FATAL) << "no packing for type " << TraitsOf(type).name;
}

int32_t ZeroOf(DType type) {
  switch (type) {
    case DType::kQ4_0:
      return 8;
    case DType::kQ5_0:
      return 16;
    case DType::kQ6_K:
      return 32;
    case DType::kQ8_0:
      return 128;
    default:
      return 0;
  }
}

// Bytes of the planes for one block of one tile.
struct BlockBytes {
  int64_t q = 0;
  int64_t d = 0;
  int64_t m = 0;
};

BlockBytes BlockBytesOf(WeightKind kind) {
  switch (kind) {
    case WeightKind::kNibbleF16:
      return {256, 32, 0};
    case WeightKind::kNibbleF16F16:
      return {256, 32, 32};
    case WeightKind::kNibbleF32F32:
      return {256, 64, 64};
    case WeightKind::kByteF16:
      return {512, 32, 0};
    case WeightKind::kByteF16F16:
      return {512, 32, 32};
    case WeightKind::kByteF32F32:
      return {512, 64, 64};
    case WeightKind::kByteF32x2:
      return {512, 128, 0};
    default:
      break;
  }
  LOG(FATAL) << "no quantised kind: " << static_cast<int>(kind);
}

// Puts one value into lane `lane` of a plane's block of 16, as f16 or f32.
void PutScale(uint8_t* plane, int lane, bool half, float value) {
  if (half) {
    const uint16_t bits = F32ToF16(value);  // exact: the value came from an f16
    std::memcpy(plane + lane * 2, &bits, 2);
  } else {
    std::memcpy(plane + lane * 4, &value, 4);
  }
}

// Writes one unpacked block of output `lane` into the planes of its tile.
void PutBlock(WeightKind kind, const Unpacked32& block, int lane, uint8_t* q, uint8_t* d,
              uint8_t* m) {
  const bool nibbles = kind <= WeightKind::kNibbleF32F32;
  for (int g = 0; g < (nibbles ? 4 : 8); ++g) {
    uint32_t four;
    std::memcpy(&four, block.q + 4 * g, 4);
    if (nibbles) {
      uint32_t high;
      std::memcpy(&high, block.q + 16 + 4 * g, 4);
      four |= high << 4;
    }
    std::memcpy(q + 64 * g + 4 * lane, &four, 4);
  }
  const bool half = kind == WeightKind::kNibbleF16 || kind == WeightKind::kNibbleF16F16 ||
                    kind == WeightKind::kByteF16 || kind == WeightKind::kByteF16F16;
  PutScale(d, lane, half, block.d0);
  if (kind == WeightKind::kByteF32x2) {
    PutScale(d + 64, lane, half, block.d1);
  }
  if (BlockBytesOf(kind).m != 0) {
    PutScale(m, lane, half, block.m);
  }
}

class Matrix final : public CpuMatrix {
 public:
  Matrix(CpuWeight weight, HugeMemory memory) : weight_(weight), memory_(std::move(memory)) {
    weight_.data = bytes();
  }

  const PackedWeight* weight() const override {
    return reinterpret_cast<const PackedWeight*>(&weight_);
  }
  const CpuWeight& cpu_weight() const override { return weight_; }
  int64_t rows() const override { return weight_.rows; }
  int64_t cols() const override { return weight_.cols; }
  bool quantized() const override { return weight_.kind < WeightKind::kF32; }
  size_t size_bytes() const override { return memory_.size_bytes(); }

  uint8_t* bytes() const { return static_cast<uint8_t*>(memory_.data()); }

 private:
  CpuWeight weight_;
  HugeMemory memory_;
};

absl::Status CheckSlice(const WeightSlice& s) {
  if (!IsWeightType(s.type)) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights of type ", TraitsOf(s.type).name, " cannot be packed for the CPU"));
  }
  if (s.row_begin < 0 || s.row_begin > s.row_end || s.col_begin < 0 || s.col_begin > s.col_end ||
      s.col_end > s.cols) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weight slice of rows ", s.row_begin, "..", s.row_end, " and columns ", s.col_begin, "..",
        s.col_end, " does not lie in a matrix of ", s.cols, " columns"));
  }
  if (IsQuantized(s.type) && (s.col_begin % 32 != 0 || s.col_end % 32 != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("columns ", s.col_begin, "..", s.col_end, " cut a block of 32 of a ",
                     TraitsOf(s.type).name, " weight; cut at multiples of 32"));
  }
  return absl::OkStatus();
}

const uint8_t* RowOf(const WeightSlice& slice, int64_t row) {
  return static_cast<const uint8_t*>(slice.data) + (slice.row_begin + row) * slice.row_bytes;
}

// Both fill the tiles of rows [row_begin, row_end).
void FillQuantized(const WeightSlice& slice, const CpuWeight& weight, uint8_t* data,
                   int64_t row_begin, int64_t row_end) {
  const BlockBytes bytes = BlockBytesOf(weight.kind);
  std::vector<Unpacked32> blocks(slice.cols / 32);
  const int64_t first_block = slice.col_begin / 32;
  for (int64_t row = row_begin; row < row_end; ++row) {
    UnpackRow(slice.type, RowOf(slice, row), blocks.data(), slice.cols);
    uint8_t* tile = data + row / kTileRows * weight.tile_bytes;
    for (int64_t b = 0; b < weight.cols / 32; ++b) {
      const Unpacked32& block = blocks[first_block + b];
      DCHECK_EQ(block.zero, weight.zero);
      PutBlock(weight.kind, block, static_cast<int>(row % kTileRows), tile + b * bytes.q,
               tile + weight.d_offset + b * bytes.d, tile + weight.m_offset + b * bytes.m);
    }
  }
}

void FillFloat(const WeightSlice& slice, const CpuWeight& weight, uint8_t* data, int64_t row_begin,
               int64_t row_end) {
  const int64_t size = weight.kind == WeightKind::kF32 ? 4 : 2;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const uint8_t* from = RowOf(slice, row) + slice.col_begin * size;
    uint8_t* to = data + row / kTileRows * weight.tile_bytes + row % kTileRows * size;
    for (int64_t k = 0; k < weight.cols; ++k) {
      std::memcpy(to + k * kTileRows * size, from + k * size, size);
    }
  }
}

CpuWeight LayOut(const WeightSlice& slice) {
  CpuWeight weight;
  weight.kind = KindOf(slice.type);
  weight.zero = ZeroOf(slice.type);
  weight.rows = slice.row_end - slice.row_begin;
  weight.cols = slice.col_end - slice.col_begin;
  weight.num_tiles = (weight.rows + kTileRows - 1) / kTileRows;
  if (IsQuantized(slice.type)) {
    const BlockBytes bytes = BlockBytesOf(weight.kind);
    const int64_t num_blocks = weight.cols / 32;
    weight.d_offset = num_blocks * bytes.q;
    weight.m_offset = weight.d_offset + RoundUp(num_blocks * bytes.d, 64);
    weight.tile_bytes = weight.m_offset + RoundUp(num_blocks * bytes.m, 64);
  } else {
    const int64_t size = weight.kind == WeightKind::kF32 ? 4 : 2;
    weight.tile_bytes = RoundUp(weight.cols * kTileRows * size, 64);
  }
  return weight;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuMatrix>> PackWeight(const WeightSlice& slice, ThreadPool* pool) {
  SHOAL_RETURN_IF_ERROR(CheckSlice(slice));
  const CpuWeight weight = LayOut(slice);
  SHOAL_ASSIGN_OR_RETURN(
      HugeMemory memory,
      HugeMemory::Allocate(weight.num_tiles * weight.tile_bytes,
                           absl::StrCat("a packed weight of ", weight.rows, " x ", weight.cols)));
  uint8_t* data = static_cast<uint8_t*>(memory.data());
  pool->Run([&](int thread) {
    const int64_t begin = weight.num_tiles * thread / pool->num_threads() * kTileRows;
    const int64_t end = weight.num_tiles * (thread + 1) / pool->num_threads() * kTileRows;
    const auto fill = IsQuantized(slice.type) ? FillQuantized : FillFloat;
    fill(slice, weight, data, begin, std::min(end, weight.rows));
  });
  pool->EndStep();
  return std::make_unique<Matrix>(weight, std::move(memory));
}

}  // namespace shoal::kernels::cpu
