// Malformed files: each is a good one with one edit. The cases are those of public reports against
// other readers: unchecked counts and products, zero dimensions, odd alignments, mistyped arrays,
// truncation.
#include <sys/resource.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/formats/gguf.h"
#include "model/formats/gguf_writer.h"
#include "tests/model_formats/gguf_test_model.h"

namespace shoal::model {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kAbsurd[] = {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 61};

// Parses the good document after `edit`: refused, with `message` in the error, without much memory.
void ExpectRefused(const std::function<void(GgufDocument&)>& edit, const std::string& message) {
  GgufDocument document = TinyDocument();
  edit(document);
  const std::string bytes = document.Serialize();
  rusage before, after;
  ::getrusage(RUSAGE_SELF, &before);
  const absl::Status status = ParseBytes(bytes).status();
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_FALSE(status.ok()) << "expected: " << message;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  EXPECT_THAT(std::string(status.message()), HasSubstr("tiny.gguf: "));
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 * 1024) << message;  // KiB
}

std::vector<uint64_t> AbsurdCounts() {
  std::vector<uint64_t> counts(std::begin(kAbsurd), std::end(kAbsurd));
  counts.push_back(TinyDocument().Serialize().size() + 1);
  return counts;
}

TEST(GgufHostileTest, TheUneditedFileIsGood) {
  EXPECT_TRUE(ParseDocument(TinyDocument()).ok());
  EXPECT_TRUE(ParseDocument(GgufDocument()).ok());  // nothing in it
}

// C34
TEST(GgufHostileTest, AbsurdCountsAndLengthsAreRefused) {
  for (uint64_t count : AbsurdCounts()) {
    ExpectRefused([&](GgufDocument& d) { d.num_metadata = count; }, "number of metadata entries");
    ExpectRefused([&](GgufDocument& d) { d.num_tensors = count; }, "number of tensors");
    ExpectRefused([&](GgufDocument& d) { d.metadata[3].key_length = count; }, "key 3");
    ExpectRefused([&](GgufDocument& d) { d.tensors[1].name_length = count; }, "name of tensor 1");
    ExpectRefused(
        [&](GgufDocument& d) { d.Find("general.architecture")->value = GgufBytes(count); },
        "'general.architecture'");
    ExpectRefused(
        [&](GgufDocument& d) { d.AddRawArray("list", GgufType::kString, 1, GgufBytes(count)); },
        "'list'");
    for (uint32_t type = 0; type <= 12; ++type) {
      ExpectRefused(
          [&](GgufDocument& d) {
            d.AddRawArray("list", static_cast<GgufType>(type), count, "12345678");
          },
          "'list'");
    }
  }
}

TEST(GgufHostileTest, CountsThatAreOneTooHighAreRefused) {
  ExpectRefused([](GgufDocument& d) { d.num_metadata = d.metadata.size() + 1; }, "");
  ExpectRefused([](GgufDocument& d) { d.num_tensors = d.tensors.size() + 1; }, "tensor");
  ExpectRefused([](GgufDocument& d) { d.metadata[0].key_length = d.metadata[0].key.size() + 1; },
                "");
}

TEST(GgufHostileTest, UnknownTypesAreRefused) {
  for (uint32_t type : {13u, 255u, 1u << 31}) {
    ExpectRefused([&](GgufDocument& d) { d.metadata[2].type = type; }, "'llama.block_count'");
    ExpectRefused(
        [&](GgufDocument& d) { d.AddRawArray("list", static_cast<GgufType>(type), 1, "1234"); },
        "'list'");
  }
  for (uint32_t type : {4u, 255u, 1u << 31}) {
    ExpectRefused([&](GgufDocument& d) { d.tensors[1].type = type; },
                  absl::StrCat("'blk.0.attn_q.weight' has type id ", type));
  }
  ExpectRefused([](GgufDocument& d) { d.tensors[1].type = 10; },
                "'blk.0.attn_q.weight' has type Q2_K");
}

// C34, C40: also in a Release build, where asserts are gone.
TEST(GgufHostileTest, NumberOfDimensionsIsOneToFour) {
  for (uint32_t num_dims : {0u, 5u, 9u, ~0u}) {
    ExpectRefused([&](GgufDocument& d) { d.tensors[1].num_dims = num_dims; },
                  absl::StrCat("'blk.0.attn_q.weight' has ", num_dims, " dimensions"));
  }
}

// C35
TEST(GgufHostileTest, TensorCountsThatOverflowAProductAreRefused) {
  for (uint64_t k = 48; k <= 512; k += 8) {
    ExpectRefused([&](GgufDocument& d) { d.num_tensors = ~uint64_t{0} / k + 1; },
                  "number of tensors");
    ExpectRefused([&](GgufDocument& d) { d.num_metadata = ~uint64_t{0} / k + 1; },
                  "number of metadata entries");
  }
}

// C37
TEST(GgufHostileTest, ZeroDimensionsAreReadAndEmptyNamesRefused) {
  for (size_t tensor = 0; tensor < 4; ++tensor) {
    GgufDocument document = TinyDocument();
    for (size_t i = 0; i < document.tensors[tensor].dims.size(); ++i) {
      document.tensors[tensor].dims[i] = 0;
      auto file = ParseDocument(document);
      ASSERT_TRUE(file.ok()) << file.status();
      EXPECT_FALSE((*file)->RequireTensor(document.tensors[tensor].name).ok());
    }
  }
  ExpectRefused([](GgufDocument& d) { d.metadata[1].key = ""; }, "metadata key is empty");
  ExpectRefused([](GgufDocument& d) { d.tensors[1].name = ""; }, "tensor name is empty");
}

TEST(GgufHostileTest, NamesMustBeUtf8AndNotTooLong) {
  for (const char* bad : {"a\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    ExpectRefused([&](GgufDocument& d) { d.metadata[2].key = bad; }, "is not valid UTF-8");
    ExpectRefused([&](GgufDocument& d) { d.tensors[2].name = bad; }, "is not valid UTF-8");
  }
  ExpectRefused([](GgufDocument& d) { d.tensors[2].name = std::string(65, 'n'); },
                "has 65 bytes; the limit is 64");
  ExpectRefused([](GgufDocument& d) { d.metadata[2].key = std::string(65536, 'k'); },
                "has 65536 bytes; the limit is 65535");
}

TEST(GgufHostileTest, DuplicatesAreRefused) {
  ExpectRefused([](GgufDocument& d) { d.AddU32("llama.block_count", 6); },
                "'llama.block_count' occurs twice");
  ExpectRefused([](GgufDocument& d) { d.tensors[2].name = d.tensors[0].name; },
                "'token_embd.weight' occurs twice");
}

// C38: arrays whose elements are not of the type they are read as.
TEST(GgufHostileTest, MistypedTokenizerArraysAreRefusedByKey) {
  GgufDocument document = TinyDocument();
  *document.Find("tokenizer.ggml.scores") = {"old.1", 0, "x"};
  *document.Find("tokenizer.ggml.token_type") = {"old.2", 0, "x"};
  *document.Find("tokenizer.ggml.tokens") = {"old.3", 0, "x"};
  document.AddRawArray("tokenizer.ggml.scores", GgufType::kU8, 4, "abcd");
  document.AddRawArray("tokenizer.ggml.token_type", GgufType::kI8, 4, "abcd");
  document.AddI32Array("tokenizer.ggml.tokens", {1, 2, 3, 4});
  auto file = ParseDocument(document);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(std::string((*file)->GetF32Array("tokenizer.ggml.scores").status().message()),
              HasSubstr("'tokenizer.ggml.scores' is an array of U8"));
  EXPECT_THAT(std::string((*file)->GetI32Array("tokenizer.ggml.token_type").status().message()),
              HasSubstr("'tokenizer.ggml.token_type' is an array of I8"));
  EXPECT_THAT(std::string((*file)->GetStringArray("tokenizer.ggml.tokens").status().message()),
              HasSubstr("'tokenizer.ggml.tokens' is an array of I32"));
}

// C41
TEST(GgufHostileTest, OddAlignmentsAreRefused) {
  for (uint32_t alignment : {0u, 1u, 3u, 4u, 13u, 33u, ~0u}) {
    ExpectRefused(
        [&](GgufDocument& d) { d.Find("general.alignment")->value = GgufBytes(alignment); },
        absl::StrCat("'general.alignment' is ", alignment));
  }
  // A power of two, but the data would begin behind the end of the file.
  ExpectRefused(
      [](GgufDocument& d) {
        d.Find("general.alignment")->value = GgufBytes(1u << 31);
        d.alignment = 0;
        for (GgufDocument::Tensor& tensor : d.tensors) {
          tensor.offset = 0;
        }
      },
      "'token_embd.weight' occupies bytes 2147483648");
  ExpectRefused(
      [](GgufDocument& d) {
        d.Find("general.alignment")->type = static_cast<uint32_t>(GgufType::kI32);
      },
      "'general.alignment' must be U32, not I32");
  ExpectRefused(
      [](GgufDocument& d) {
        *d.Find("general.alignment") = {
            "general.alignment", static_cast<uint32_t>(GgufType::kString), GgufStringBytes("32")};
      },
      "'general.alignment' must be U32, not STRING");
}

TEST(GgufHostileTest, SizesThatOverflowAreRefused) {
  const std::vector<std::vector<uint64_t>> shapes = {
      {~uint64_t{0}, 1},
      {uint64_t{1} << 63, 1},
      {uint64_t{1} << 62, 4},
      {uint64_t{1} << 32, uint64_t{1} << 32},
      {uint64_t{1} << 62, 1},
      {uint64_t{1} << 61, 1},
      {uint64_t{1} << 60, 1},
      {uint64_t{1} << 16, uint64_t{1} << 16, uint64_t{1} << 16, uint64_t{1} << 16},
      {0, uint64_t{1} << 62, uint64_t{1} << 62},
      {0, uint64_t{1} << 62, 2}};
  ExpectRefused(
      [](GgufDocument& d) {
        d.tensors[1].dims = {0, uint64_t{1} << 63};
      },
      "'blk.0.attn_q.weight': dimension 1 is 9223372036854775808");
  for (const std::vector<uint64_t>& shape : shapes) {
    for (uint32_t type : {0u, 2u, 8u, 14u, 28u}) {
      ExpectRefused(
          [&](GgufDocument& d) {
            d.tensors[1].dims = shape;
            d.tensors[1].type = type;
          },
          "'blk.0.attn_q.weight'");
    }
  }
}

TEST(GgufHostileTest, OffsetsMustBeAlignedInsideAndDisjoint) {
  ExpectRefused([](GgufDocument& d) { d.tensors[1].offset = 4097; },
                "'blk.0.attn_q.weight': offset 4097 is no multiple of the alignment 32");
  for (uint64_t offset : {uint64_t{1} << 20, uint64_t{1} << 63, ~uint64_t{0} - 31}) {
    ExpectRefused([&](GgufDocument& d) { d.tensors[1].offset = offset; }, "'blk.0.attn_q.weight'");
  }
  ExpectRefused([](GgufDocument& d) { d.tensors[1].offset = 0; },
                "'token_embd.weight' and 'blk.0.attn_q.weight' overlap");
  ExpectRefused([](GgufDocument& d) { d.tensors[1].offset = 4096 - 32; },
                "'token_embd.weight' and 'blk.0.attn_q.weight' overlap");
}

TEST(GgufHostileTest, BoolsAreZeroOrOne) {
  ExpectRefused([](GgufDocument& d) { d.Find("tokenizer.ggml.add_bos_token")->value = "\x02"; },
                "'tokenizer.ggml.add_bos_token': a bool is 0 or 1, not 2");
  ExpectRefused([](GgufDocument& d) { d.AddRawArray("flags", GgufType::kBool, 2, "\x01\x03"); },
                "'flags': a bool is 0 or 1, not 3");
}

TEST(GgufHostileTest, ArraysNestOnlyAFewLevels) {
  // `depth` arrays around one byte, below the one that AddRawArray writes.
  const auto nested = [](int depth) {
    std::string bytes;
    for (int i = 0; i < depth; ++i) {
      const GgufType type = i == depth - 1 ? GgufType::kU8 : GgufType::kArray;
      absl::StrAppend(&bytes, GgufBytes(static_cast<uint32_t>(type)), GgufBytes<uint64_t>(1));
    }
    return bytes + "x";
  };
  GgufDocument document = TinyDocument();
  document.AddRawArray("nest", GgufType::kArray, 1, nested(3));
  EXPECT_TRUE(ParseDocument(document).ok());
  for (int depth : {4, 100, 100000}) {
    ExpectRefused(
        [&](GgufDocument& d) { d.AddRawArray("nest", GgufType::kArray, 1, nested(depth)); },
        "'nest': arrays nest deeper than 4 levels");
  }
}

// C43: a small file that asks for much.
TEST(GgufHostileTest, HugeArraysInSmallFilesAreRefused) {
  for (uint32_t type = 0; type <= 12; ++type) {
    ExpectRefused(
        [&](GgufDocument& d) {
          d.AddRawArray("list", static_cast<GgufType>(type), uint64_t{1} << 40,
                        std::string(1024, '\0'));
        },
        "'list'");
  }
}

// C44: every prefix of the file is refused; the last byte belongs to the last tensor.
TEST(GgufHostileTest, EveryTruncationIsRefused) {
  const std::string bytes = TinyDocument().Serialize();
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_FALSE(ParseBytes(bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_THAT(std::string(ParseBytes(bytes.substr(0, bytes.size() - 1)).status().message()),
              HasSubstr("tensor 'blk.0.ffn_down.weight' occupies bytes"));
}

TEST(GgufHostileTest, AnyFlippedByteIsReadOrRefused) {
  const std::string bytes = TinyDocument().Serialize();
  for (size_t i = 0; i < bytes.size(); i += i < 1200 ? 1 : 97) {
    for (uint8_t mask : {0x01, 0x80, 0xff}) {
      std::string edited = bytes;
      edited[i] = static_cast<char>(edited[i] ^ mask);
      auto file = ParseBytes(edited);
      if (file.ok()) {
        for (const TensorInfo& tensor : (*file)->tensors()) {
          EXPECT_LE(tensor.num_bytes, bytes.size());
        }
        (*file)->Fingerprint();
      }
    }
  }
}

// C89
TEST(GgufHostileTest, RowsThatAreNoWholeBlocksAreRefusedByTensor) {
  const auto edit = [](uint32_t type, uint64_t cols) {
    return [=](GgufDocument& d) {
      d.tensors[1].type = type;
      d.tensors[1].dims = {cols, 2};
    };
  };
  ExpectRefused(edit(12, 128),
                "'blk.0.attn_q.weight': a row of 128 values is no multiple of the "
                "256 values of a Q4_K block");
  ExpectRefused(edit(12, 2688), "'blk.0.attn_q.weight': a row of 2688 values");
  ExpectRefused(edit(8, 33), "'blk.0.attn_q.weight': a row of 33 values");
}

TEST(GgufHostileTest, OtherMagicsAndVersionsAreRefused) {
  ExpectRefused([](GgufDocument& d) { d.magic = "GGML"; }, "not a GGUF file");
  ExpectRefused([](GgufDocument& d) { d.magic = std::string("\xff\0\n\x1b", 4); },
                "not a GGUF file");
  for (uint32_t version : {0u, 1u, 4u, ~0u}) {
    ExpectRefused([&](GgufDocument& d) { d.version = version; },
                  absl::StrCat("GGUF version ", version));
  }
  ExpectRefused([](GgufDocument& d) { d.version = 0x03000000; }, "big endian");
}

}  // namespace
}  // namespace shoal::model
