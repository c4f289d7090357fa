#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "model/weights.h"
#include "tests/worker_engine/tiny_model.h"

namespace shoal::model {
namespace {

using ::testing::HasSubstr;

using Edit = std::function<void(GgufDocument&)>;

// A good file with one edit.
absl::StatusOr<ModelConfig> ParseEdited(const worker::TinyModel& tiny, const Edit& edit) {
  GgufDocument document = worker::MakeTinyDocument(tiny);
  edit(document);
  const std::string bytes = document.Serialize();
  const auto file =
      GgufFile::Parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "tiny.gguf");
  if (!file.ok()) {
    return file.status();
  }
  return ParseConfig(**file);
}

Edit SetU32(std::string key, uint32_t value) {
  return [=](GgufDocument& document) {
    if (GgufDocument::Metadata* entry = document.Find(key)) {
      entry->value = GgufBytes(value);
      entry->type = static_cast<uint32_t>(GgufType::kU32);
    } else {
      document.AddU32(key, value);
    }
  };
}

Edit SetF32(std::string key, float value) {
  return [=](GgufDocument& document) {
    if (GgufDocument::Metadata* entry = document.Find(key)) {
      entry->value = GgufBytes(value);
    } else {
      document.AddF32(key, value);
    }
  };
}

Edit SetString(std::string key, std::string value) {
  return [=](GgufDocument& document) {
    if (GgufDocument::Metadata* entry = document.Find(key)) {
      entry->value = GgufStringBytes(value);
    } else {
      document.AddString(key, value);
    }
  };
}

Edit Remove(std::string key) {
  return [=](GgufDocument& document) {
    std::erase_if(document.metadata, [&](const auto& entry) { return entry.key == key; });
  };
}

Edit SetTokens(size_t count) {
  return [=](GgufDocument& document) {
    document.AddStringArray("tokenizer.ggml.tokens", std::vector<std::string>(count, "t"));
  };
}

Edit SetHeads(std::vector<int32_t> heads) {
  return [=](GgufDocument& document) {
    Remove("llama.attention.head_count")(document);
    document.AddI32Array("llama.attention.head_count", heads);
  };
}

TEST(ConfigTest, ReadsWhatTheFileSays) {
  const auto config =
      ParseEdited({.rope_factors = true, .rope_base = 5e5}, SetString("general.name", "tiny one"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, Architecture::kLlama);
  EXPECT_EQ(config->name, "tiny one");
  EXPECT_EQ(config->hidden, 256);
  EXPECT_EQ(config->num_layers, 2);
  EXPECT_EQ(config->num_heads, 8);
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_EQ(config->ffn, 384);
  EXPECT_EQ(config->vocab, 520);
  EXPECT_EQ(config->context_length, 2048);
  EXPECT_EQ(config->rms_eps, 1e-5f);
  EXPECT_EQ(config->rope.base, 5e5);
  EXPECT_EQ(config->rope.dim, 32);
  EXPECT_EQ(config->rope.style, kernels::RopeStyle::kAdjacent);
  EXPECT_TRUE(config->rope.has_freq_factors);
  EXPECT_FALSE(config->tied_head);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_FALSE(config->qk_norm);
}

TEST(ConfigTest, ArchitecturesDifferInRopeBiasAndNorm) {
  const auto qwen2 = ParseEdited({.architecture = "qwen2", .qkv_bias = true}, [](auto&) {});
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  EXPECT_EQ(qwen2->rope.style, kernels::RopeStyle::kHalves);
  EXPECT_TRUE(qwen2->qkv_bias);
  const auto qwen3 = ParseEdited({.architecture = "qwen3", .tied_head = true}, [](auto&) {});
  ASSERT_TRUE(qwen3.ok()) << qwen3.status();
  EXPECT_TRUE(qwen3->qk_norm);
  EXPECT_TRUE(qwen3->tied_head);
  EXPECT_FALSE(qwen3->qkv_bias);
}

TEST(ConfigTest, DefaultsFollowFromOtherValues) {
  const auto config = ParseEdited({}, [](GgufDocument& document) {
    Remove("llama.attention.key_length")(document);
    Remove("llama.attention.value_length")(document);
    Remove("llama.attention.head_count_kv")(document);
    Remove("llama.rope.freq_base")(document);
  });
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 256 / 8);
  EXPECT_EQ(config->num_kv_heads, 8);
  EXPECT_EQ(config->rope.base, 10000);
}

TEST(ConfigTest, TakesArraysOfEqualHeadCountsAndLinearScaling) {
  EXPECT_TRUE(ParseEdited({}, SetHeads({8, 8})).ok());
  const auto linear = ParseEdited({}, [](GgufDocument& document) {
    document.AddString("llama.rope.scaling.type", "linear");
    document.AddF32("llama.rope.scaling.factor", 4);
  });
  ASSERT_TRUE(linear.ok()) << linear.status();
  EXPECT_EQ(linear->rope.linear_factor, 4);
  EXPECT_TRUE(ParseEdited({}, SetU32("llama.attention.sliding_window", 2048)).ok());
}

struct Refusal {
  std::string name;
  Edit edit;
  absl::StatusCode code;
  std::string message;
};

TEST(ConfigTest, RefusesWhatItCannotServeNamingKeyAndValue) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnserved = absl::StatusCode::kUnimplemented;
  const std::vector<Refusal> refusals = {
      {"architecture", SetString("general.architecture", "gptj"), kUnserved,
       "served are: llama, qwen2, qwen3"},
      {"no architecture", Remove("general.architecture"), absl::StatusCode::kNotFound,
       "general.architecture"},
      {"zero layers", SetU32("llama.block_count", 0), kInvalid, "llama.block_count is 0"},
      {"many layers", SetU32("llama.block_count", 4000000000u), kInvalid, "is 4000000000"},
      {"zero heads", SetU32("llama.attention.head_count", 0), kInvalid, "is 0"},
      {"zero kv heads", SetU32("llama.attention.head_count_kv", 0), kInvalid, "is 0"},
      {"kv heads", SetU32("llama.attention.head_count_kv", 3), kInvalid,
       "llama.attention.head_count_kv is 3, which does not divide the 8"},
      {"head size", SetU32("llama.attention.key_length", 100000), kInvalid, "is 100000"},
      {"value size", SetU32("llama.attention.value_length", 64), kUnserved, "is 64"},
      {"no eps", Remove("llama.attention.layer_norm_rms_epsilon"), absl::StatusCode::kNotFound,
       "layer_norm_rms_epsilon"},
      {"zero eps", SetF32("llama.attention.layer_norm_rms_epsilon", 0), kInvalid, "is 0"},
      {"negative base", SetF32("llama.rope.freq_base", -1), kInvalid, "is -1"},
      {"odd rope", SetU32("llama.rope.dimension_count", 31), kInvalid, "is 31"},
      {"wide rope", SetU32("llama.rope.dimension_count", 64), kInvalid, "is 64"},
      {"yarn", SetString("llama.rope.scaling.type", "yarn"), kUnserved, "yarn"},
      {"experts", SetU32("llama.expert_count", 8), kUnserved, "llama.expert_count is 8"},
      {"window", SetU32("llama.attention.sliding_window", 1024), kUnserved,
       "less than the context of 2048"},
      {"soft cap", SetF32("llama.final_logit_softcapping", 30), kUnserved, "is 30"},
      {"vocabulary", SetU32("llama.vocab_size", 521), kInvalid,
       "llama.vocab_size is 521 but token_embd.weight has 520"},
      {"more tokens than embeddings", SetTokens(521), kInvalid,
       "tokenizer.ggml.tokens has 521 tokens and token_embd.weight 520 rows"},
      {"no tokens", SetTokens(0), kInvalid, "tokenizer.ggml.tokens has 0 tokens"},
      {"uneven heads", SetHeads({8, 4}), kUnserved, "differs between layers"},
      {"heads for another model", SetHeads({8, 8, 8}), kInvalid, "has 3 values for 2 layers"},
  };
  for (const Refusal& refusal : refusals) {
    const absl::Status status = ParseEdited({}, refusal.edit).status();
    EXPECT_EQ(status.code(), refusal.code) << refusal.name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.message)) << refusal.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tiny.gguf")) << refusal.name;
  }
}

TEST(ConfigTest, TheVocabularyIsWhatTheTokenizerKnowsAlsoWhereTheTableIsPadded) {
  const auto padded = ParseEdited({}, SetTokens(300));
  ASSERT_TRUE(padded.ok()) << padded.status();
  EXPECT_EQ(padded->vocab, 300);
  const auto full = ParseEdited({}, SetTokens(520));
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->vocab, 520);
}

}  // namespace
}  // namespace shoal::model
