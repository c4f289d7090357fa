#include "tests/model_text/tokenizer_vocabularies.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/utf8.h"
#include "model/formats/gguf.h"

namespace shoal::text {
namespace {

void AddToken(Vocabulary* vocabulary, absl::string_view token, TokenType type, float score = 0) {
  vocabulary->tokens.emplace_back(token);
  vocabulary->types.push_back(static_cast<int32_t>(type));
  if (vocabulary->model == "llama") vocabulary->scores.push_back(score);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file) << path;
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

int32_t GetId(const model::GgufFile& file, absl::string_view name) {
  const std::string key = absl::StrCat("tokenizer.ggml.", name, "_token_id");
  return file.Has(key) ? static_cast<int32_t>(*file.GetU64(key)) : -1;
}

std::vector<std::string> GetStrings(const model::GgufFile& file, absl::string_view key) {
  const auto strings = file.GetStringArray(key);
  CHECK(strings.ok()) << strings.status();
  return {strings->begin(), strings->end()};
}

Vocabulary ReadVocabulary(const std::string& path) {
  auto opened = model::GgufFile::Open(path, model::FileBytes::Mode::kRead);
  CHECK(opened.ok()) << opened.status();
  const model::GgufFile& file = **opened;
  Vocabulary vocabulary;
  vocabulary.model = std::string(*file.GetString("tokenizer.ggml.model"));
  vocabulary.pre = std::string(*file.GetString("tokenizer.ggml.pre"));
  vocabulary.tokens = GetStrings(file, "tokenizer.ggml.tokens");
  vocabulary.types = *file.GetI32Array("tokenizer.ggml.token_type");
  if (file.Has("tokenizer.ggml.scores")) {
    vocabulary.scores = *file.GetF32Array("tokenizer.ggml.scores");
  }
  if (file.Has("tokenizer.ggml.merges")) {
    vocabulary.merges = GetStrings(file, "tokenizer.ggml.merges");
  }
  vocabulary.bos_id = GetId(file, "bos");
  vocabulary.eos_id = GetId(file, "eos");
  vocabulary.unk_id = GetId(file, "unknown");
  return vocabulary;
}

}  // namespace

std::string BpeLetter(unsigned char byte) {
  const auto is_itself = [](int b) {
    return (b > ' ' && b < 0x7F) || (b > 0xA0 && b < 0xAD) || b > 0xAD;
  };
  int code_point = byte;
  if (!is_itself(byte)) {
    code_point = 0x100;
    for (int b = 0; b < byte; ++b) code_point += !is_itself(b);
  }
  std::string letter;
  base::AppendUtf8(static_cast<char32_t>(code_point), &letter);
  return letter;
}

Vocabulary SmallBpe(const std::vector<std::string>& merges, absl::string_view pre) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = std::string(pre);
  for (int byte = 0; byte < 256; ++byte) {
    AddToken(&vocabulary, BpeLetter(static_cast<unsigned char>(byte)), TokenType::kNormal);
  }
  for (const std::string& merge : merges) {
    const std::vector<std::string> pieces = absl::StrSplit(merge, ' ');
    AddToken(&vocabulary, absl::StrCat(pieces[0], pieces[1]), TokenType::kNormal);
  }
  vocabulary.merges = merges;
  for (const char* token : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    AddToken(&vocabulary, token, TokenType::kControl);
  }
  AddToken(&vocabulary, "<think>", TokenType::kUserDefined);
  vocabulary.eos_id = IdOf(vocabulary, "<|im_end|>");
  return vocabulary;
}

Vocabulary SmallSpm(const std::vector<std::pair<std::string, float>>& pieces) {
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.pre = "default";
  AddToken(&vocabulary, "<unk>", TokenType::kUnknown);
  AddToken(&vocabulary, "<s>", TokenType::kControl);
  AddToken(&vocabulary, "</s>", TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) {
    AddToken(&vocabulary, absl::StrFormat("<0x%02X>", byte), TokenType::kByte);
  }
  for (const auto& [piece, score] : pieces) {
    AddToken(&vocabulary, piece, TokenType::kNormal, score);
  }
  AddToken(&vocabulary, "[INST]", TokenType::kControl);
  AddToken(&vocabulary, "<think>", TokenType::kUserDefined);
  vocabulary.unk_id = 0;
  vocabulary.bos_id = 1;
  vocabulary.eos_id = 2;
  return vocabulary;
}

int32_t IdOf(const Vocabulary& vocabulary, absl::string_view token) {
  const auto found = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), token);
  CHECK(found != vocabulary.tokens.end()) << token;
  return static_cast<int32_t>(found - vocabulary.tokens.begin());
}

std::string TokenizerCasesFolder() {
  const char* cases = std::getenv("SHOAL_CASES_DIR");
  const std::string folder =
      absl::StrCat(cases != nullptr ? cases : SHOAL_SOURCE_DIR "/../shared/cases", "/tokenizer");
  return std::filesystem::is_directory(folder) ? folder : "";
}

KnownCases LoadKnownCases(const std::string& folder, const std::string& name) {
  KnownCases cases;
  const std::string path = absl::StrCat(folder, "/", name, ".gguf");
  cases.vocabulary = ReadVocabulary(path);
  cases.texts = absl::StrSplit(ReadFile(path + ".inp"), "\n__ggml_vocab_test__\n");
  for (const absl::string_view line : absl::StrSplit(ReadFile(path + ".out"), '\n')) {
    std::vector<int32_t>& ids = cases.ids.emplace_back();
    for (const absl::string_view id : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
      CHECK(absl::SimpleAtoi(id, &ids.emplace_back()));
    }
  }
  cases.ids.pop_back();    // after the last newline
  cases.texts.pop_back();  // after the last separator
  CHECK_EQ(cases.texts.size(), cases.ids.size());
  return cases;
}

std::string FixtureFolder() {
  const char* folder = std::getenv("SHOAL_TOKENIZER_DATA");
  return folder != nullptr ? folder : SHOAL_SOURCE_DIR "/tests/model_text/data";
}

KnownCases LoadBpeFixture(const std::string& file) {
  const auto json = nlohmann::json::parse(ReadFile(absl::StrCat(FixtureFolder(), "/", file)));
  KnownCases cases;
  cases.vocabulary.model = "gpt2";
  cases.vocabulary.pre = json["pre"];
  cases.vocabulary.tokens = json["tokens"].get<std::vector<std::string>>();
  cases.vocabulary.merges = json["merges"].get<std::vector<std::string>>();
  for (const auto& entry : json["cases"]) {
    cases.texts.push_back(entry[0]);
    cases.ids.push_back(entry[1].get<std::vector<int32_t>>());
  }
  return cases;
}

uint32_t RandomText::Below(uint32_t limit) {
  state_ = state_ * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(state_ >> 33) % limit;
}

std::string RandomText::Next(int max_atoms) {
  static constexpr absl::string_view kAtoms[] = {
      " ",    " ",   "  ",   "\n",         "\r\n", "\t",       "'s",     "'LL",
      "the",  "The", "ab",   "e\u0301",    "é",    "12",       "345",    "\u0663",
      "中文", "か",  "한",   "ا",          "🙂", "👩\u200d👧", "\u00a0", "\ufeff",
      ".",    "!?",  "</s>", "<|im_end|>", "<s>",  "$",        "€",      "<0x0A>"};
  std::string text;
  const uint32_t num_atoms = Below(static_cast<uint32_t>(max_atoms) + 1);
  for (uint32_t i = 0; i < num_atoms; ++i) {
    if (Below(5) == 0) {
      char32_t c = Below(2) == 0 ? Below(0x300) : Below(0x110000);
      if ((c >= 0xD800 && c < 0xE000) || c == 0x2581) c = 0;
      base::AppendUtf8(c, &text);
    } else {
      const absl::string_view atom = kAtoms[Below(std::size(kAtoms))];
      text.append(atom.data(), atom.size());
    }
  }
  return text;
}

}  // namespace shoal::text
