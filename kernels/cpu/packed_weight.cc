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

// How a quantised type is packed.
struct Packing {
  WeightKind kind;
  int32_t zero;         // of its codes (quant/unpack.h)
  int code_bits;        // 4, 5, 6 or 8
  int scale_bytes;      // of a record
  int super_bytes = 0;  // for 256 columns
};

Packing PackingOf(DType type) {
  switch (type) {
    case DType::kQ4_0:
      return {WeightKind::kQ4_0, 8, 4, 32};
    case DType::kQ4_1:
      return {WeightKind::kQ4_1, 0, 4, 64};
    case DType::kQ4_K:
      return {WeightKind::kQ4_K, 0, 4, 32, 64};
    case DType::kQ5_0:
      return {WeightKind::kQ5_0, 16, 5, 32};
    case DType::kQ5_1:
      return {WeightKind::kQ5_1, 0, 5, 64};
    case DType::kQ5_K:
      return {WeightKind::kQ5_K, 0, 5, 32, 64};
    case DType::kQ6_K:
      return {WeightKind::kQ6_K, 32, 6, 32, 32};
    case DType::kQ8_0:
      return {WeightKind::kQ8_0, 128, 8, 32};
    default:
      break;
  }
  LOG(FATAL) << "no packing for type " << TraitsOf(type).name;
}

WeightKind FloatKindOf(DType type) {
  switch (type) {
    case DType::kF16:
      return WeightKind::kF16;
    case DType::kBF16:
      return WeightKind::kBf16;
    case DType::kF32:
      return WeightKind::kF32;
    default:
      break;
  }
  LOG(FATAL) << TraitsOf(type).name << " is no float type";
}

// Columns 4g .. 4g + 3 of a block.
uint32_t FourCodes(const Unpacked32& block, int g) {
  uint32_t four;
  std::memcpy(&four, block.q + 4 * g, 4);
  return four;
}

// Writes the codes of output `lane` into its record.
void PutCodes(const Unpacked32& block, int code_bits, int lane, uint8_t* record) {
  uint8_t* to = record + 4 * lane;
  const auto put = [to](int vector, uint32_t four) { std::memcpy(to + 64 * vector, &four, 4); };
  if (code_bits == 8) {
    for (int g = 0; g < 8; ++g) {
      put(g, FourCodes(block, g));
    }
    return;
  }
  for (int g = 0; g < 4; ++g) {
    put(g, (FourCodes(block, g) & 0x0f0f0f0f) | (FourCodes(block, g + 4) & 0x0f0f0f0f) << 4);
  }
  if (code_bits == 5) {
    uint32_t high = 0;
    for (int g = 0; g < 8; ++g) {
      high |= ((FourCodes(block, g) >> 4) & 0x01010101) << g;
    }
    put(4, high);
  } else if (code_bits == 6) {
    for (int v = 0; v < 2; ++v) {
      uint32_t high = 0;
      for (int h = 0; h < 4; ++h) {
        high |= ((FourCodes(block, 4 * v + h) >> 4) & 0x03030303) << (2 * h);
      }
      put(4 + v, high);
    }
  }
}

// Puts a value of f16 (so, without loss) in lane `lane` of 16.
void PutHalf(float value, int lane, uint8_t* to) {
  const uint16_t bits = F32ToF16(value);
  std::memcpy(to + 2 * lane, &bits, 2);
}

// Writes the scales of output `lane` of one block; `super_scales` belong to its 256 columns.
void PutScales(const Unpacked32& block, WeightKind kind, int lane, uint8_t* scales,
               uint8_t* super_scales) {
  switch (kind) {
    case WeightKind::kQ4_K:
    case WeightKind::kQ5_K:
      scales[lane] = static_cast<uint8_t>(block.scale[0]);
      scales[16 + lane] = block.min;
      PutHalf(block.d, lane, super_scales);
      PutHalf(block.m, lane, super_scales + 32);
      return;
    case WeightKind::kQ6_K:
      scales[lane] = static_cast<uint8_t>(block.scale[0]);
      scales[16 + lane] = static_cast<uint8_t>(block.scale[1]);
      PutHalf(block.d, lane, super_scales);
      return;
    case WeightKind::kQ4_1:
    case WeightKind::kQ5_1:
      PutHalf(block.d, lane, scales);
      PutHalf(block.m, lane, scales + 32);
      return;
    default:
      PutHalf(block.d, lane, scales);
      return;
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
  const Packing packing = PackingOf(slice.type);
  const int64_t code_bytes = packing.code_bits * 64;
  const int64_t record_bytes = code_bytes + packing.scale_bytes;
  std::vector<Unpacked32> blocks(slice.cols / 32);
  const int64_t first_block = slice.col_begin / 32;
  for (int64_t row = row_begin; row < row_end; ++row) {
    UnpackRow(slice.type, RowOf(slice, row), blocks.data(), slice.cols);
    const int lane = static_cast<int>(row % kTileRows);
    uint8_t* tile = data + row / kTileRows * weight.tile_bytes;
    for (int64_t b = 0; b < weight.cols / 32; ++b) {
      const Unpacked32& block = blocks[first_block + b];
      DCHECK_EQ(block.zero, weight.zero);
      uint8_t* record = tile + b * record_bytes;
      PutCodes(block, packing.code_bits, lane, record);
      PutScales(block, weight.kind, lane, record + code_bytes,
                tile + weight.super_offset + (weight.super_phase + b) / 8 * packing.super_bytes);
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
  weight.rows = slice.row_end - slice.row_begin;
  weight.cols = slice.col_end - slice.col_begin;
  weight.num_tiles = (weight.rows + kTileRows - 1) / kTileRows;
  if (IsQuantized(slice.type)) {
    const Packing packing = PackingOf(slice.type);
    const int64_t num_blocks = weight.cols / 32;
    weight.kind = packing.kind;
    weight.zero = packing.zero;
    weight.super_offset = num_blocks * (packing.code_bits * 64 + packing.scale_bytes);
    weight.super_phase = static_cast<int32_t>(slice.col_begin / 32 % 8);
    const int64_t num_supers = (weight.super_phase + num_blocks + 7) / 8;
    weight.tile_bytes = RoundUp(weight.super_offset + num_supers * packing.super_bytes, 64);
  } else {
    weight.kind = FloatKindOf(slice.type);
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
