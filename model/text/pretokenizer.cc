#include "model/text/pretokenizer.h"

#include <glog/logging.h>

#include <cstdint>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "base/status_macros.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace shoal::text {
namespace {

// The patterns are those of the models' tokenizer.json files. Several in one family are applied in
// turn, each to the words the one before it left.

#define SHOAL_GPT2_PATTERN \
  R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"
#define SHOAL_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SHOAL_LINES_AND_SPACES R"(\s*[\r\n]+|\s+(?!\S)|\s+)"
#define SHOAL_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define SHOAL_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define SHOAL_BEFORE_WORD R"([^\r\n\p{L}\p{N}]?)"

constexpr absl::string_view kGpt2[] = {SHOAL_GPT2_PATTERN};
constexpr absl::string_view kStarcoder[] = {R"(\p{N})", SHOAL_GPT2_PATTERN};
constexpr absl::string_view kLlama3[] = {
    SHOAL_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SHOAL_LINES_AND_SPACES};
constexpr absl::string_view kQwen2[] = {
    SHOAL_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SHOAL_LINES_AND_SPACES};
constexpr absl::string_view kQwen35[] = {
    SHOAL_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" SHOAL_LINES_AND_SPACES};
constexpr absl::string_view kGpt4o[] = {
    SHOAL_BEFORE_WORD SHOAL_UPPER
    "*" SHOAL_LOWER "+" SHOAL_CONTRACTIONS "?|" SHOAL_BEFORE_WORD SHOAL_UPPER "+" SHOAL_LOWER
    "*" SHOAL_CONTRACTIONS
    "?|"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SHOAL_LINES_AND_SPACES};
constexpr absl::string_view kTekken[] = {
    SHOAL_BEFORE_WORD SHOAL_UPPER "*" SHOAL_LOWER "+|" SHOAL_BEFORE_WORD SHOAL_UPPER "+" SHOAL_LOWER
                                  "*|"
                                  R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SHOAL_LINES_AND_SPACES};
constexpr absl::string_view kDeepseekV3[] = {
    R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|)" SHOAL_LINES_AND_SPACES};

struct Entry {
  absl::string_view name;
  absl::Span<const absl::string_view> patterns;
  Pretokenizer::Defaults defaults;
};

constexpr Pretokenizer::Defaults kMergesOnly = {};
constexpr Pretokenizer::Defaults kWholeWordsAndBos = {/*ignore_merges=*/true, /*add_bos=*/true};

constexpr Entry kTable[] = {
    {"gpt-2", kGpt2, kMergesOnly},
    {"a.x-4.0", kGpt2, kMergesOnly},
    {"exaone4", kGpt2, kMergesOnly},
    {"gigachat", kGpt2, kMergesOnly},
    {"granite-docling", kGpt2, kMergesOnly},
    {"jais", kGpt2, kMergesOnly},
    {"mellum", kGpt2, kMergesOnly},
    {"modern-bert", kGpt2, kMergesOnly},
    {"mpt", kGpt2, kMergesOnly},
    {"olmo", kGpt2, kMergesOnly},
    {"phi-2", kGpt2, kMergesOnly},
    {"trillion", kGpt2, kMergesOnly},
    {"starcoder", kStarcoder, kMergesOnly},
    {"codeshell", kStarcoder, kMergesOnly},
    {"command-r", kStarcoder, kMergesOnly},
    {"exaone", kStarcoder, kMergesOnly},
    {"minerva-7b", kStarcoder, kMergesOnly},
    {"refact", kStarcoder, kMergesOnly},
    {"smollm", kStarcoder, kMergesOnly},
    {"llama-bpe", kLlama3, kWholeWordsAndBos},
    {"falcon3", kLlama3, kWholeWordsAndBos},
    {"falcon-h1", kLlama3, kWholeWordsAndBos},
    {"lfm2", kLlama3, kWholeWordsAndBos},
    {"llama-v3", kLlama3, kWholeWordsAndBos},
    {"llama3", kLlama3, kWholeWordsAndBos},
    {"midm-2.0", kLlama3, kWholeWordsAndBos},
    {"pixtral", kLlama3, kWholeWordsAndBos},
    {"chatglm-bpe", kLlama3, kMergesOnly},
    {"dbrx", kLlama3, kMergesOnly},
    {"glm4", kLlama3, kMergesOnly},
    {"smaug-bpe", kLlama3, kMergesOnly},
    {"qwen2", kQwen2, kMergesOnly},
    {"deepseek-r1-qwen", kQwen2, kMergesOnly},
    {"grok-2", kQwen2, kMergesOnly},
    {"hunyuan", kQwen2, kMergesOnly},
    {"megrez", kQwen2, kMergesOnly},
    {"stablelm2", kQwen2, kMergesOnly},
    {"qwen35", kQwen35, kMergesOnly},
    {"gpt-4o", kGpt4o, kMergesOnly},
    {"kanana2", kGpt4o, kMergesOnly},
    {"llama4", kGpt4o, kMergesOnly},
    {"tekken", kTekken, kWholeWordsAndBos},
    {"deepseek-v3", kDeepseekV3, kMergesOnly},
    {"hunyuan-dense", kDeepseekV3, kMergesOnly},
};

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using CodePtr = std::unique_ptr<pcre2_code, CodeDeleter>;
using MatchDataPtr = std::unique_ptr<pcre2_match_data, MatchDataDeleter>;
using MatchContextPtr = std::unique_ptr<pcre2_match_context, MatchContextDeleter>;

}  // namespace

// One compiled regular expression. Every match is a word, and so is every gap between matches.
class Pretokenizer::Pattern {
 public:
  explicit Pattern(absl::string_view regex) {
    // PCRE2's \s has U+180E, which is no white space in Unicode since 6.3 nor in the tokenisers.
    const std::string source = absl::StrReplaceAll(
        regex, {{R"(\s)", R"(\p{White_Space})"}, {R"(\S)", R"(\P{White_Space})"}});
    int error = 0;
    PCRE2_SIZE error_offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &error_offset, nullptr));
    CHECK(code_ != nullptr) << "pattern '" << source << "', offset " << error_offset << ": error "
                            << error;
    // Without JIT (a kernel that forbids writable code) the interpreter gives the same matches.
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
    context_.reset(pcre2_match_context_create(nullptr));
    CHECK(context_ != nullptr);
    // The patterns backtrack at most once over each character, so no limit guards against them.
    pcre2_set_match_limit(context_.get(), UINT32_MAX);
  }

  // Appends the words of `text`, which is valid UTF-8, to `words`.
  absl::Status Split(absl::string_view text, std::vector<absl::string_view>* words) const {
    const MatchDataPtr match(pcre2_match_data_create(1, nullptr));
    CHECK(match != nullptr);
    size_t pos = 0;
    while (pos < text.size()) {
      const int rc = Match(text, pos, match.get());
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "the pre-tokeniser failed at byte ", pos, " of ", text.size(), ": PCRE2 error ", rc));
      }
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
      CHECK_GT(bounds[1], bounds[0]) << "a pattern matched nothing";
      if (bounds[0] > pos) words->push_back(text.substr(pos, bounds[0] - pos));
      words->push_back(text.substr(bounds[0], bounds[1] - bounds[0]));
      pos = bounds[1];
    }
    if (pos < text.size()) words->push_back(text.substr(pos));
    return absl::OkStatus();
  }

 private:
  int Match(absl::string_view text, size_t pos, pcre2_match_data* match) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    // The caller has checked the text; PCRE2 would check all of it again for every word.
    const int rc = pcre2_match(code_.get(), subject, text.size(), pos, PCRE2_NO_UTF_CHECK, match,
                               context_.get());
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    return pcre2_match(code_.get(), subject, text.size(), pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       match, context_.get());
  }

  CodePtr code_;
  MatchContextPtr context_;
};

Pretokenizer::Pretokenizer(const Defaults& defaults) : defaults_(defaults) {}
Pretokenizer::~Pretokenizer() = default;

absl::StatusOr<std::unique_ptr<Pretokenizer>> Pretokenizer::Create(absl::string_view name) {
  for (const Entry& entry : kTable) {
    if (entry.name != name) continue;
    std::unique_ptr<Pretokenizer> result(new Pretokenizer(entry.defaults));
    for (const absl::string_view regex : entry.patterns) {
      result->patterns_.push_back(std::make_unique<Pattern>(regex));
    }
    return result;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer.ggml.pre is '", absl::Utf8SafeCEscape(name),
                   "', which is not supported; supported are ", absl::StrJoin(Names(), ", ")));
}

absl::Status Pretokenizer::Split(absl::string_view text,
                                 std::vector<absl::string_view>* words) const {
  words->clear();
  if (text.empty()) return absl::OkStatus();
  words->push_back(text);
  std::vector<absl::string_view> coarse;
  for (const std::unique_ptr<Pattern>& pattern : patterns_) {
    coarse.swap(*words);
    words->clear();
    for (const absl::string_view word : coarse) {
      SHOAL_RETURN_IF_ERROR(pattern->Split(word, words));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> Pretokenizer::Names() {
  std::vector<std::string> names;
  for (const Entry& entry : kTable) names.emplace_back(entry.name);
  return names;
}

}  // namespace shoal::text
