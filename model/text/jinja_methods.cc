#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "model/text/jinja_context.h"
#include "model/text/jinja_native.h"
#include "model/text/jinja_operators.h"
#include "model/text/jinja_text.h"
#include "model/text/jinja_unicode.h"

namespace shoal::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;
constexpr size_t kNone = absl::string_view::npos;

template <bool kLeft, bool kRight>
Result StripMethod(Context& context, const Value& self, const Arguments& args) {
  return Strip(context, self, args.Get(0), kLeft, kRight);
}

using Range = std::pair<size_t, size_t>;  // bytes [first, second) of a string

absl::StatusOr<std::vector<Range>> SplitOnSpace(Context& context, absl::string_view text,
                                                int64_t max_splits) {
  std::vector<Range> pieces;
  size_t pos = StripRange(text, nullptr, true, false).first;
  for (int64_t splits = 0; pos < text.size(); ++splits) {
    SHOAL_RETURN_IF_ERROR(context.Step());
    if (splits == max_splits) {
      pieces.emplace_back(pos, text.size());
      break;
    }
    size_t end = pos;
    size_t next = pos;
    while (next < text.size() && !IsSpace(DecodeCodePoint(text, &next))) {
      end = next;
    }
    pieces.emplace_back(pos, end);
    pos = end + StripRange(text.substr(end), nullptr, true, false).first;
  }
  return pieces;
}

absl::StatusOr<std::vector<Range>> SplitOn(Context& context, absl::string_view text,
                                           absl::string_view separator, int64_t max_splits) {
  if (separator.empty()) {
    return absl::InvalidArgumentError("the separator of split is empty");
  }
  std::vector<Range> pieces;
  size_t begin = 0;
  for (int64_t left = max_splits; left != 0; --left) {
    SHOAL_RETURN_IF_ERROR(context.Step());
    const size_t hit = FindBytes(text, separator, begin);
    if (hit == kNone) {
      break;
    }
    pieces.emplace_back(begin, hit);
    begin = hit + separator.size();
  }
  pieces.emplace_back(begin, text.size());
  return pieces;
}

// split and rsplit. Separators are found from the left in both: rsplit differs from Python's for
// those that overlap themselves, as "aa" in "aaa".
template <bool kFromRight>
Result Split(Context& context, const Value& self, const Arguments& args) {
  const absl::string_view text = self.bytes();
  context.Work(text.size());
  SHOAL_ASSIGN_OR_RETURN(const int64_t max_splits, IntArgument(args.Get(1), "maxsplit", -1));
  const bool on_space = args.Get(0) == nullptr || args.Get(0)->is(Kind::kNone);
  SHOAL_ASSIGN_OR_RETURN(const absl::string_view separator,
                         StringArgument(on_space ? nullptr : args.Get(0), "sep", ""));
  const int64_t from_left = kFromRight ? -1 : max_splits;
  SHOAL_ASSIGN_OR_RETURN(std::vector<Range> ranges,
                         on_space ? SplitOnSpace(context, text, from_left)
                                  : SplitOn(context, text, separator, from_left));
  if (kFromRight && max_splits >= 0 && ranges.size() > static_cast<size_t>(max_splits) + 1) {
    const auto last_joined = ranges.end() - max_splits - 1;
    last_joined->first = on_space ? 0 : ranges.front().first;
    ranges.erase(ranges.begin(), last_joined);
  }
  std::vector<Value> pieces;
  for (const auto& [begin, end] : ranges) {
    pieces.push_back(context.NewUserString(text.substr(begin, end - begin)));
  }
  return context.NewList(std::move(pieces));
}

Result SplitLinesMethod(Context& context, const Value& self, const Arguments& args) {
  context.Work(self.bytes().size());
  std::vector<Value> lines;
  for (absl::string_view line : SplitLines(self.bytes(), BoolArgument(args.Get(0), false))) {
    SHOAL_RETURN_IF_ERROR(context.Step());
    lines.push_back(context.NewUserString(line));
  }
  return context.NewList(std::move(lines));
}

// startswith and endswith take one string or a tuple of them.
template <bool kAtEnd>
Result HasAffix(Context& context, const Value& self, const Arguments& args) {
  const Value& affixes = *args.Get(0);
  const absl::Span<const Value> several =
      affixes.is(Kind::kTuple) ? affixes.items() : absl::Span<const Value>(&affixes, 1);
  for (const Value& affix : several) {
    SHOAL_ASSIGN_OR_RETURN(const absl::string_view bytes,
                           StringArgument(&affix, "a prefix or suffix", ""));
    context.Work(bytes.size());
    if (kAtEnd ? absl::EndsWith(self.bytes(), bytes) : absl::StartsWith(self.bytes(), bytes)) {
      return Value::Bool(true);
    }
  }
  return Value::Bool(false);
}

template <bool kAtEnd>
Result RemoveAffix(Context& context, const Value& self, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const absl::string_view affix,
                         StringArgument(args.Get(0), "a prefix or suffix", ""));
  absl::string_view text = self.bytes();
  kAtEnd ? absl::ConsumeSuffix(&text, affix) : absl::ConsumePrefix(&text, affix);
  return context.NewUserString(text);
}

Result ReplaceMethod(Context& context, const Value& self, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const int64_t count, IntArgument(args.Get(2), "count", -1));
  for (size_t i : {0, 1}) {
    SHOAL_RETURN_IF_ERROR(StringArgument(args.Get(i), "an argument of replace", "").status());
  }
  return ReplaceText(context, self, *args.Get(0), *args.Get(1), count);
}

Result JoinMethod(Context& context, const Value& self, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(context, *args.Get(0)));
  for (const Value& item : items) {
    SHOAL_RETURN_IF_ERROR(StringArgument(&item, "an item of join", "").status());
  }
  return JoinText(context, self, items);
}

template <std::string (*kMap)(absl::string_view)>
Result MapText(Context& context, const Value& self, const Arguments& args) {
  return context.NewUserString(kMap(self.bytes()));
}

// Index of the first or last occurrence, in characters; -1 if none.
template <bool kLast>
Result Find(Context& context, const Value& self, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const absl::string_view needle,
                         StringArgument(args.Get(0), "what to find", ""));
  const absl::string_view text = self.bytes();
  context.Work(text.size());
  size_t hit = kNone;
  for (size_t at = FindBytes(text, needle, 0); at != kNone; at = FindBytes(text, needle, at + 1)) {
    hit = at;
    if (!kLast) {
      break;
    }
    context.Work(needle.size() + 1);
    SHOAL_RETURN_IF_ERROR(context.Step());
  }
  return Value::Int(hit == kNone ? -1 : static_cast<int64_t>(NumCodePoints(text.substr(0, hit))));
}

Result CountText(Context& context, const Value& self, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const absl::string_view needle,
                         StringArgument(args.Get(0), "what to count", ""));
  const absl::string_view text = self.bytes();
  context.Work(text.size());
  if (needle.empty()) {
    return Value::Int(NumCodePoints(text) + 1);
  }
  int64_t count = 0;
  for (size_t at = FindBytes(text, needle, 0); at != kNone;
       at = FindBytes(text, needle, at + needle.size())) {
    ++count;
  }
  return Value::Int(count);
}

Result DictGet(Context& context, const Value& self, const Arguments& args) {
  const Value otherwise = args.Get(1) != nullptr ? *args.Get(1) : Value::None();
  SHOAL_ASSIGN_OR_RETURN(const bool has, Contains(context, self, *args.Get(0)));
  if (!has) {
    return otherwise;
  }
  for (const auto& [key, value] : self.AsDict().entries()) {
    SHOAL_ASSIGN_OR_RETURN(const bool equal, Equals(context, key, *args.Get(0)));
    if (equal) {
      return value;
    }
  }
  return otherwise;
}

Result DictItems(Context& context, const Value& self, const Arguments& args) {
  std::vector<Value> items;
  for (const auto& [key, value] : self.AsDict().entries()) {
    items.push_back(context.NewTuple({key, value}));
  }
  return context.NewList(std::move(items));
}

Result DictKeys(Context& context, const Value& self, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<Value> keys, Iterate(context, self));
  return context.NewList(std::move(keys));
}

Result DictValues(Context& context, const Value& self, const Arguments& args) {
  std::vector<Value> values;
  for (const Dict::Entry& entry : self.AsDict().entries()) {
    values.push_back(entry.second);
  }
  return context.NewList(std::move(values));
}

Result CountItems(Context& context, const Value& self, const Arguments& args) {
  int64_t count = 0;
  for (const Value& item : self.items()) {
    SHOAL_ASSIGN_OR_RETURN(const bool equal, Equals(context, item, *args.Get(0)));
    count += equal;
  }
  return Value::Int(count);
}

Result IndexOfItem(Context& context, const Value& self, const Arguments& args) {
  for (size_t i = 0; i < self.items().size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const bool equal, Equals(context, self.items()[i], *args.Get(0)));
    if (equal) {
      return Value::Int(i);
    }
  }
  return absl::InvalidArgumentError("index() finds no such item in the list");
}

Result LoopCycle(Context& context, const Value& self, const Arguments& args) {
  if (args.positional.empty()) {
    return absl::InvalidArgumentError("loop.cycle() needs values to choose from");
  }
  return args.positional[self.AsLoop().index0 % args.positional.size()];
}

Result LoopChanged(Context& context, const Value& self, const Arguments& args) {
  Loop& loop = self.AsLoop();
  bool changed = !loop.has_changed_value || loop.changed_value.size() != args.positional.size();
  for (size_t i = 0; i < args.positional.size() && !changed; ++i) {
    SHOAL_ASSIGN_OR_RETURN(const bool equal,
                           Equals(context, loop.changed_value[i], args.positional[i]));
    changed = !equal;
  }
  loop.has_changed_value = true;
  loop.changed_value.assign(args.positional.begin(), args.positional.end());
  return Value::Bool(changed);
}

constexpr Native kStringMethods[] = {
    {"capitalize", &MapText<&Capitalize>},
    {"count", &CountText, {"sub"}, 1},
    {"endswith", &HasAffix<true>, {"suffix"}, 1},
    {"find", &Find<false>, {"sub"}, 1},
    {"join", &JoinMethod, {"iterable"}, 1},
    {"lower", &MapText<&ToLower>},
    {"lstrip", &StripMethod<true, false>, {"chars"}},
    {"removeprefix", &RemoveAffix<false>, {"prefix"}, 1},
    {"removesuffix", &RemoveAffix<true>, {"suffix"}, 1},
    {"replace", &ReplaceMethod, {"old", "new", "count"}, 2},
    {"rfind", &Find<true>, {"sub"}, 1},
    {"rsplit", &Split<true>, {"sep", "maxsplit"}},
    {"rstrip", &StripMethod<false, true>, {"chars"}},
    {"split", &Split<false>, {"sep", "maxsplit"}},
    {"splitlines", &SplitLinesMethod, {"keepends"}},
    {"startswith", &HasAffix<false>, {"prefix"}, 1},
    {"strip", &StripMethod<true, true>, {"chars"}},
    {"title", &MapText<&Title>},
    {"upper", &MapText<&ToUpper>},
};

constexpr Native kDictMethods[] = {
    {"get", &DictGet, {"key", "default"}, 1},
    {"items", &DictItems},
    {"keys", &DictKeys},
    {"values", &DictValues},
};

constexpr Native kListMethods[] = {
    {"count", &CountItems, {"value"}, 1},
    {"index", &IndexOfItem, {"value"}, 1},
};

constexpr Native kLoopMethods[] = {
    {"changed", &LoopChanged, {}, 0, true},
    {"cycle", &LoopCycle, {}, 0, true},
};

}  // namespace

const Native* FindMethod(Kind kind, absl::string_view name) {
  switch (kind) {
    case Kind::kString:
      return FindIn(kStringMethods, name);
    case Kind::kDict:
      return FindIn(kDictMethods, name);
    case Kind::kList:
    case Kind::kTuple:
      return FindIn(kListMethods, name);
    case Kind::kLoop:
      return FindIn(kLoopMethods, name);
    default:
      return nullptr;
  }
}

bool IsMutatingMethod(Kind kind, absl::string_view name) {
  constexpr absl::string_view kOfLists[] = {"append", "clear", "pop",    "reverse",
                                            "insert", "sort",  "extend", "remove"};
  constexpr absl::string_view kOfDicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (kind == Kind::kList) {
    return std::find(std::begin(kOfLists), std::end(kOfLists), name) != std::end(kOfLists);
  }
  return kind == Kind::kDict &&
         std::find(std::begin(kOfDicts), std::end(kOfDicts), name) != std::end(kOfDicts);
}

}  // namespace shoal::text::jinja
