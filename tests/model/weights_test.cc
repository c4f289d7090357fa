#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

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

TEST(WeightsTest, ABiasOnQAloneIsRefused) {
  const Loaded loaded = LoadEdited({}, [](GgufDocument& document) {
    document.AddTensor("blk.0.attn_q.bias", kernels::DType::kF32, {256},
                       std::vector<float>(256, 1.0f));
  });
  EXPECT_FALSE(loaded.weights.ok());
}

}  // namespace
}  // namespace shoal::model
