#include "model/formats/gguf.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/quant/dequantize.h"
#include "model/formats/gguf_writer.h"
#include "tests/model_formats/gguf_test_model.h"

namespace shoal::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A temporary file with the given bytes, removed at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& bytes) {
    char name[] = "/tmp/shoal_gguf_test_XXXXXX";
    ::close(::mkstemp(name));
    path_ = name;
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::unique_ptr<GgufFile> Tiny() {
  auto file = ParseDocument(TinyDocument());
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

TEST(GgufFileTest, ReadsEveryKindOfMetadata) {
  const std::unique_ptr<GgufFile> file = Tiny();
  EXPECT_EQ(*file->GetString("general.architecture"), "llama");
  EXPECT_EQ(*file->GetU64("llama.block_count"), 6u);
  EXPECT_EQ(*file->GetU64("llama.context_length"), 256u);
  EXPECT_EQ(*file->GetF32("llama.rope.freq_base"), 10000.0f);
  EXPECT_TRUE(*file->GetBool("tokenizer.ggml.add_bos_token"));
  EXPECT_THAT(*file->GetStringArray("tokenizer.ggml.tokens"),
              ElementsAre("<unk>", "a", "", absl::string_view("\xff\0b", 3)));
  EXPECT_THAT(*file->GetF32Array("tokenizer.ggml.scores"), ElementsAre(0.0f, -1.0f, -2.5f, -3.0f));
  EXPECT_THAT(*file->GetI32Array("tokenizer.ggml.token_type"), ElementsAre(2, 1, 1, 6));
  EXPECT_THAT(*file->GetU32Array("tokenizer.ggml.token_type"), ElementsAre(2u, 1u, 1u, 6u));
  EXPECT_EQ(file->metadata().size(), 10u);
  EXPECT_EQ(file->version(), 3u);
}

TEST(GgufFileTest, MissingKeysAreNotFoundOrTheFallback) {
  const std::unique_ptr<GgufFile> file = Tiny();
  const absl::Status status = file->GetU64("llama.vocab_size").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tiny.gguf"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("llama.vocab_size"));
  EXPECT_EQ(*file->GetU64Or("llama.vocab_size", 7), 7u);
  EXPECT_EQ(*file->GetF32Or("no", 0.5f), 0.5f);
  EXPECT_TRUE(*file->GetBoolOr("no", true));
  EXPECT_FALSE(file->Has("no"));
  EXPECT_FALSE(file->GetStringArray("no").ok());
}

TEST(GgufFileTest, WrongTypesAreRefusedAlsoWithAFallback) {
  const std::unique_ptr<GgufFile> file = Tiny();
  for (const absl::Status& status :
       {file->GetU64Or("general.architecture", 1).status(), file->GetU64("llama.negative").status(),
        file->GetF32Or("llama.block_count", 1.0f).status(),
        file->GetBoolOr("llama.block_count", true).status(),
        file->GetString("tokenizer.ggml.tokens").status(),
        file->GetStringArray("tokenizer.ggml.scores").status(),
        file->GetF32Array("tokenizer.ggml.token_type").status(),
        file->GetI32Array("tokenizer.ggml.scores").status(),
        file->GetI32Array("llama.block_count").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
  EXPECT_THAT(std::string(file->GetF32Array("tokenizer.ggml.token_type").status().message()),
              HasSubstr("an array of I32, not an array of F32"));
}

template <typename T>
void ExpectInteger(GgufType type, T value, int64_t expected) {
  GgufDocument document;
  document.metadata.push_back({"n", static_cast<uint32_t>(type), GgufBytes(value)});
  auto file = ParseDocument(document);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<uint64_t> result = (*file)->GetU64("n");
  EXPECT_EQ(result.ok(), expected >= 0) << result.status();
  if (result.ok()) {
    EXPECT_EQ(*result, static_cast<uint64_t>(expected));
  } else {
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(absl::StrCat(expected)));
  }
}

TEST(GgufFileTest, IntegersOfEveryWidthAreRead) {
  ExpectInteger<uint8_t>(GgufType::kU8, 255, 255);
  ExpectInteger<int8_t>(GgufType::kI8, 127, 127);
  ExpectInteger<int8_t>(GgufType::kI8, -128, -128);
  ExpectInteger<uint16_t>(GgufType::kU16, 65535, 65535);
  ExpectInteger<int16_t>(GgufType::kI16, -1, -1);
  ExpectInteger<uint32_t>(GgufType::kU32, 4294967295u, 4294967295);
  ExpectInteger<int32_t>(GgufType::kI32, 2147483647, 2147483647);
  ExpectInteger<uint64_t>(GgufType::kU64, uint64_t{1} << 62, int64_t{1} << 62);
  ExpectInteger<int64_t>(GgufType::kI64, -3, -3);
}

TEST(GgufFileTest, OutOfRangeValuesAreRefused) {
  GgufDocument document;
  document.AddF32("nan", std::nanf(""));
  document.metadata.push_back({"big", static_cast<uint32_t>(GgufType::kF64), GgufBytes(1e300)});
  document.metadata.push_back({"f64", static_cast<uint32_t>(GgufType::kF64), GgufBytes(0.25)});
  document.AddString("latin1", "caf\xe9");
  document.AddI32Array("minus", {1, -1});
  document.AddRawArray("large", GgufType::kU32, 1, GgufBytes<uint32_t>(0x80000000u));
  auto file = ParseDocument(document);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE((*file)->GetF32("nan").ok());
  EXPECT_FALSE((*file)->GetF32("big").ok());
  EXPECT_EQ(*(*file)->GetF32("f64"), 0.25f);
  EXPECT_FALSE((*file)->GetString("latin1").ok());
  EXPECT_FALSE((*file)->GetU32Array("minus").ok());
  EXPECT_FALSE((*file)->GetI32Array("large").ok());
  EXPECT_THAT(*(*file)->GetU32Array("large"), ElementsAre(0x80000000u));
}

TEST(GgufFileTest, TensorsHaveTheirShapeAndData) {
  const std::unique_ptr<GgufFile> file = Tiny();
  ASSERT_EQ(file->tensors().size(), 4u);
  EXPECT_EQ(file->FindTensor("no"), nullptr);
  const TensorInfo* tensor = file->FindTensor("blk.0.attn_q.weight");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->dtype, kernels::DType::kQ8_0);
  EXPECT_THAT(tensor->dims, ElementsAre(256, 4));
  EXPECT_EQ(tensor->cols(), 256);
  EXPECT_EQ(tensor->rows(), 4);
  EXPECT_EQ(tensor->num_bytes, 4u * 8 * 34);
  const TensorInfo* norm = file->FindTensor("output_norm.weight");
  float values[3];
  kernels::DequantizeRow(norm->dtype, file->data(*norm), values, 3);
  EXPECT_THAT(values, ElementsAre(1.0f, 2.0f, 3.0f));
  std::vector<float> row(256);
  kernels::DequantizeRow(tensor->dtype, file->data(*tensor), row.data(), 256);
  EXPECT_NEAR(row[5], 5 - 31.5f, 0.2f);
}

TEST(GgufFileTest, RequiredTensorsMustBeWeightsWithoutZeroDimensions) {
  GgufDocument document = TinyDocument();
  document.AddRawTensor("empty", kernels::DType::kF32, {0, 4}, "");
  document.AddRawTensor("empty_rows", kernels::DType::kQ8_0, {32, 0}, "");
  document.AddRawTensor("ids", kernels::DType::kI32, {2}, std::string(8, '\0'));
  auto file = ParseDocument(document);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->RequireTensor("output_norm.weight").ok());
  EXPECT_EQ((*file)->RequireTensor("no").status().code(), absl::StatusCode::kNotFound);
  for (const char* name : {"empty", "empty_rows", "ids"}) {
    const absl::Status status = (*file)->RequireTensor(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("'", name, "'")));
  }
  EXPECT_EQ((*file)->FindTensor("empty")->rows(), 0);
}

TEST(GgufFileTest, VersionTwoAndOtherAlignmentsAreRead) {
  for (uint32_t alignment : {8u, 16u, 64u, 4096u}) {
    GgufDocument document = TinyDocument();
    document.version = 2;
    document.alignment = alignment;
    document.Find("general.alignment")->value = GgufBytes(alignment);
    auto file = ParseDocument(document);
    ASSERT_TRUE(file.ok()) << file.status();
    const TensorInfo* norm = (*file)->FindTensor("output_norm.weight");
    EXPECT_EQ(norm->offset % alignment, 0u);
    EXPECT_EQ(static_cast<const float*>((*file)->data(*norm))[2], 3.0f);
  }
}

TEST(GgufFileTest, MappedAndReadFilesAreTheSame) {
  const TemporaryFile file(TinyDocument().Serialize());
  auto mapped = GgufFile::Open(file.path(), FileBytes::Mode::kMap);
  auto read = GgufFile::Open(file.path(), FileBytes::Mode::kRead);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ((*mapped)->tensors().size(), (*read)->tensors().size());
  for (const TensorInfo& tensor : (*mapped)->tensors()) {
    const TensorInfo* other = (*read)->FindTensor(tensor.name);
    ASSERT_NE(other, nullptr);
    EXPECT_EQ(std::memcmp((*mapped)->data(tensor), (*read)->data(*other), tensor.num_bytes), 0);
  }
  EXPECT_EQ((*mapped)->Fingerprint(), (*read)->Fingerprint());
}

// C44: a rank may die from a file that is cut under it, but never reads other bytes than it loaded.
TEST(GgufFileTest, TruncationAfterLoadKillsAMappedReaderAndLeavesAReadCopyIntact) {
  GgufDocument document = TinyDocument();
  document.AddRawTensor("large", kernels::DType::kI8, {1 << 16}, std::string(1 << 16, 'x'));
  const TemporaryFile temporary(document.Serialize());
  auto read = GgufFile::Open(temporary.path(), FileBytes::Mode::kRead);
  auto mapped = GgufFile::Open(temporary.path(), FileBytes::Mode::kMap);
  ASSERT_TRUE(read.ok() && mapped.ok());
  ASSERT_EQ(::truncate(temporary.path().c_str(), 100), 0);
  const TensorInfo* tensor = (*read)->FindTensor("large");
  EXPECT_EQ(static_cast<const char*>((*read)->data(*tensor))[65535], 'x');
  EXPECT_DEATH(
      {
        const volatile char* data =
            static_cast<const volatile char*>((*mapped)->data(*(*mapped)->FindTensor("large")));
        std::_Exit(data[65535] == 'x' ? 0 : 0);
      },
      "");
}

TEST(GgufFileTest, OpenRefusesWhatIsNoRegularFile) {
  EXPECT_EQ(GgufFile::Open("/nonexistent/model.gguf", FileBytes::Mode::kMap).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(GgufFile::Open("/tmp", FileBytes::Mode::kMap).status().code(),
            absl::StatusCode::kInvalidArgument);
  const TemporaryFile fifo("");
  ::unlink(fifo.path().c_str());
  ASSERT_EQ(::mkfifo(fifo.path().c_str(), 0600), 0);
  EXPECT_EQ(GgufFile::Open(fifo.path(), FileBytes::Mode::kRead).status().code(),
            absl::StatusCode::kInvalidArgument);
  const TemporaryFile empty("");
  for (FileBytes::Mode mode : {FileBytes::Mode::kMap, FileBytes::Mode::kRead}) {
    const absl::Status status = GgufFile::Open(empty.path(), mode).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(empty.path()));
  }
}

TEST(GgufFileTest, FingerprintTellsFilesApart) {
  std::set<uint64_t> seen = {Tiny()->Fingerprint()};
  EXPECT_EQ(Tiny()->Fingerprint(), *seen.begin());
  for (int edit = 0; edit < 5; ++edit) {
    GgufDocument document = TinyDocument();
    switch (edit) {
      case 0:
        document.Find("llama.block_count")->value = GgufBytes<uint32_t>(7);
        break;
      case 1:
        document.tensors[1].data.front() ^= 1;
        break;
      case 2:
        document.tensors[3].data.back() ^= 1;
        break;
      case 3:
        document.tensors[0].data[document.tensors[0].data.size() / 2] ^= 1;
        break;
      case 4:
        document.tensors[2].name = "output_norm.w";
        break;
    }
    auto file = ParseDocument(document);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(seen.insert((*file)->Fingerprint()).second) << "edit " << edit;
  }
}

TEST(GgufFileTest, PartsOfASplitModelAreRefused) {
  GgufDocument document = TinyDocument();
  document.metadata.push_back(
      {"split.count", static_cast<uint32_t>(GgufType::kU16), GgufBytes<uint16_t>(3)});
  const absl::Status status = ParseDocument(document).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("one of 3 parts"));
}

}  // namespace
}  // namespace shoal::model
