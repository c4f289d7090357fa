#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker_engine/tiny_model.h"

namespace shoal::model {
namespace {

using ::testing::HasSubstr;

struct Loaded {
  std::unique_ptr<GgufFile> file;
  absl::StatusOr<Weights> weights = absl::UnknownError("not loaded");
};

Loaded LoadEdited(const worker::TinyModel& tiny, const std::function<void(GgufDocument&)>& edit) {
  GgufDocument document = worker::MakeTinyDocument(tiny);
  edit(document);
  const std::string bytes = document.Serialize();
  Loaded loaded;
  auto file =
      GgufFile::Parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "tiny.gguf");
  EXPECT_TRUE(file.ok()) << file.status();
  loaded.file = *std::move(file);
  const auto config = ParseConfig(*loaded.file);
  EXPECT_TRUE(config.ok()) << config.status();
  loaded.weights = Weights::Create(*loaded.file, *config);
  return loaded;
}

GgufDocument::Tensor& TensorOf(GgufDocument& document, const std::string& name) {
  for (GgufDocument::Tensor& tensor : document.tensors) {
    if (tensor.name == name) {
      return tensor;
    }
  }
  ADD_FAILURE() << "no tensor " << name;
  return document.tensors[0];
}

TEST(WeightsTest, FindsEveryTensorOfEveryArchitecture) {
  for (const worker::TinyModel& tiny :
       {worker::TinyModel{.architecture = "llama", .rope_factors = true},
        worker::TinyModel{.architecture = "qwen2", .tied_head = true, .qkv_bias = true},
        worker::TinyModel{.architecture = "qwen3"}}) {
    const Loaded loaded = LoadEdited(tiny, [](auto&) {});
    ASSERT_TRUE(loaded.weights.ok()) << loaded.weights.status();
    EXPECT_EQ(loaded.weights->num_tensors(), static_cast<int64_t>(loaded.file->tensors().size()));
    const WeightRef& gate = loaded.weights->Get("blk.1.ffn_gate.weight");
    EXPECT_EQ(gate.rows, 384);
    EXPECT_EQ(gate.cols, 256);
    EXPECT_EQ(gate.row_bytes, 256 * 4);
    EXPECT_EQ(loaded.weights->Vector("output_norm.weight").size(), 256u);
  }
}

TEST(WeightsTest, LeavesOutTheRowsThatPadTheVocabulary) {
  const Loaded loaded = LoadEdited({}, [](GgufDocument& document) {
    document.AddStringArray("tokenizer.ggml.tokens", std::vector<std::string>(300, "t"));
  });
  ASSERT_TRUE(loaded.weights.ok()) << loaded.weights.status();
  EXPECT_EQ(loaded.weights->Get("token_embd.weight").rows, 300);
  EXPECT_EQ(loaded.weights->Get("output.weight").rows, 300);
}

TEST(WeightsTest, RefusesAMissingTensorByName) {
  const Loaded loaded = LoadEdited({}, [](GgufDocument& document) {
    std::erase_if(document.tensors,
                  [](const auto& tensor) { return tensor.name == "blk.1.ffn_up.weight"; });
  });
  EXPECT_EQ(loaded.weights.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(loaded.weights.status().message()), HasSubstr("blk.1.ffn_up.weight"));
}

TEST(WeightsTest, RefusesAWrongShapeSayingBoth) {
  const Loaded loaded = LoadEdited({}, [](GgufDocument& document) {
    GgufDocument::Tensor& tensor = TensorOf(document, "blk.0.attn_q.weight");
    std::swap(tensor.dims[0], tensor.dims[1]);
    tensor.dims[0] /= 2;
    tensor.dims[1] *= 2;
  });
  EXPECT_EQ(loaded.weights.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(loaded.weights.status().message()),
              HasSubstr("blk.0.attn_q.weight has shape [128, 512]; expected [256, 256]"));
}

TEST(WeightsTest, RefusesAQuantisedVectorAndIntegers) {
  const auto retype = [](kernels::DType type) {
    return LoadEdited({},
                      [=](GgufDocument& document) {
                        GgufDocument::Tensor& tensor = TensorOf(document, "blk.0.attn_norm.weight");
                        tensor.type = static_cast<uint32_t>(type);
                      })
        .weights.status();
  };
  const absl::Status quantised = retype(kernels::DType::kQ8_0);
  EXPECT_EQ(quantised.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(quantised.message()), HasSubstr("has type Q8_0; expected F32"));
  EXPECT_FALSE(retype(kernels::DType::kI32).ok());
}

TEST(WeightsTest, RefusesTensorsThatWouldBeIgnored) {
  // A bias on the output projection would change the result; the architecture has none.
  const Loaded loaded = LoadEdited({}, [](GgufDocument& document) {
    document.AddTensor("blk.0.attn_output.bias", kernels::DType::kF32, {256},
                       std::vector<float>(256, 1.0f));
  });
  EXPECT_EQ(loaded.weights.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(loaded.weights.status().message()), HasSubstr("blk.0.attn_output.bias"));
}

// The bytes of one row of `type`, all finite, with an f16 infinity at byte `offset` if it is not
// -1.
absl::Status CheckOneRow(kernels::DType type, int64_t offset) {
  constexpr int64_t kCols = 512;
  const int64_t row_bytes = kernels::RowBytes(type, kCols);
  std::vector<char> bytes(3 * row_bytes, 0x11);
  if (offset >= 0) {
    bytes[row_bytes + offset] = 0;
    bytes[row_bytes + offset + 1] = 0x7c;
  }
  const WeightRef ref{.name = "w",
                      .type = type,
                      .rows = 3,
                      .cols = kCols,
                      .row_bytes = row_bytes,
                      .data = bytes.data()};
  if (const absl::Status others = CheckFinite(ref, 0, 1); !others.ok()) return others;
  return CheckFinite(ref, 0, 3);
}

TEST(WeightsTest, FindsTheScaleThatIsNotFiniteInEveryFormat) {
  using kernels::DType;
  const std::vector<std::pair<DType, std::vector<int64_t>>> scales = {
      {DType::kF16, {0, 1022}},        {DType::kQ8_0, {0, 34 * 15}},
      {DType::kQ4_0, {0, 18 * 15}},    {DType::kQ4_1, {0, 2, 20 * 15 + 2}},
      {DType::kQ5_0, {0, 22 * 15}},    {DType::kQ5_1, {0, 2, 24 * 15 + 2}},
      {DType::kQ4_K, {0, 2, 144 + 2}}, {DType::kQ5_K, {0, 2, 176 + 2}},
      {DType::kQ6_K, {208, 210 + 208}}};
  for (const auto& [type, offsets] : scales) {
    const char* name = kernels::TraitsOf(type).name;
    EXPECT_TRUE(CheckOneRow(type, -1).ok()) << name << ": " << CheckOneRow(type, -1);
    for (const int64_t offset : offsets) {
      const absl::Status status = CheckOneRow(type, offset);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name << " " << offset;
      EXPECT_THAT(std::string(status.message()), HasSubstr("tensor w, row 1")) << name;
    }
  }
  // Quants of these bytes are no scales.
  EXPECT_TRUE(CheckOneRow(DType::kQ4_K, 16).ok());
}

TEST(WeightsTest, FindsFloatsThatAreNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(64, 1.0f);
    WeightRef ref{.name = "w",
                  .type = kernels::DType::kF32,
                  .rows = 2,
                  .cols = 32,
                  .row_bytes = 128,
                  .data = values.data()};
    EXPECT_TRUE(CheckFinite(ref, 0, 2).ok());
    values[63] = bad;
    EXPECT_TRUE(CheckFinite(ref, 0, 1).ok());
    EXPECT_FALSE(CheckFinite(ref, 0, 2).ok());
    EXPECT_FALSE(CheckFinite(ref, 1, 2).ok());
  }
}

TEST(WeightsTest, ABiasOnQAloneIsRefused) {
  const Loaded loaded = LoadEdited({}, [](GgufDocument& document) {
    document.AddTensor("blk.0.attn_q.bias", kernels::DType::kF32, {256},
                       std::vector<float>(256, 1.0f));
  });
  EXPECT_FALSE(loaded.weights.ok());
}

}  // namespace
}  // namespace shoal::model
