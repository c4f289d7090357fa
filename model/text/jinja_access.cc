#include "model/text/jinja_access.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "model/text/jinja_operators.h"
#include "model/text/jinja_print.h"
#include "model/text/jinja_unicode.h"

namespace shoal::text::jinja {
namespace {

Value NoAttribute(Context& context, const Value& value, absl::string_view name) {
  return context.NewUndefined(
      absl::StrCat("'", value.TypeName(), "' has no attribute '", name, "'"));
}

// Methods and attributes of the type itself; absent if there is none.
Value OwnAttribute(Context& context, const Value& value, absl::string_view name) {
  if (const Native* method = FindMethod(value.kind(), name); method != nullptr) {
    return context.NewFunction({nullptr, nullptr, method, value});
  }
  if (IsMutatingMethod(value.kind(), name)) {
    return context.NewUndefined(
        absl::StrCat("'", name, "' would change a ", value.TypeName(),
                     ", which a chat template may not; make a new value, or use a namespace"));
  }
  return Arguments::Absent();
}

Value LoopAttribute(Context& context, const Loop& loop, absl::string_view name) {
  const int64_t index0 = static_cast<int64_t>(loop.index0);
  const int64_t length = static_cast<int64_t>(loop.items.size());
  if (name == "index") return Value::Int(index0 + 1);
  if (name == "index0") return Value::Int(index0);
  if (name == "revindex") return Value::Int(length - index0);
  if (name == "revindex0") return Value::Int(length - index0 - 1);
  if (name == "first") return Value::Bool(index0 == 0);
  if (name == "last") return Value::Bool(index0 + 1 == length);
  if (name == "length") return Value::Int(length);
  if (name == "depth") return Value::Int(1);  // counts only the levels of recursive loops
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem") {
    return index0 > 0 ? loop.items[index0 - 1] : context.NewUndefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index0 + 1 < length ? loop.items[index0 + 1]
                               : context.NewUndefined("there is no next item");
  }
  return Arguments::Absent();
}

// The item of a string, list or tuple at `index`, from the end if negative.
Value ItemAt(Context& context, const Value& value, int64_t index) {
  if (value.is_string()) {
    context.Work(value.bytes().size());
  }
  const int64_t size =
      static_cast<int64_t>(value.is_string() ? NumCodePoints(value.bytes()) : value.items().size());
  const int64_t at = index < 0 ? index + size : index;
  if (at < 0 || at >= size) {
    return context.NewUndefined(absl::StrCat("'", value.TypeName(), "' has no element ", index));
  }
  if (!value.is_string()) {
    return value.items()[at];
  }
  const size_t begin = ByteOffset(value.bytes(), at);
  size_t end = begin;
  DecodeCodePoint(value.bytes(), &end);
  return context.NewString(value.AsString().Slice(begin, end));
}

struct SliceRange {
  int64_t start;
  int64_t count;
  int64_t step;
};

// Python's slice.indices().
absl::StatusOr<SliceRange> ResolveSlice(int64_t size, const Value* start, const Value* stop,
                                        const Value* step) {
  for (const Value* bound : {start, stop, step}) {
    if (bound != nullptr && !bound->is_integral() && !bound->is(Kind::kNone)) {
      return bound->is_undefined() ? absl::InvalidArgumentError(bound->WhyUndefined())
                                   : NotAWholeNumber("a bound of a slice", *bound);
    }
  }
  auto given = [](const Value* bound) { return bound != nullptr && bound->is_integral(); };
  int64_t by = given(step) ? step->AsInt() : 1;
  if (by == 0) {
    return absl::InvalidArgumentError("the step of a slice is 0");
  }
  by = std::clamp(by, -size - 1, size + 1);
  const int64_t low = by < 0 ? -1 : 0;
  const int64_t high = by < 0 ? size - 1 : size;
  auto resolve = [&](const Value* bound, int64_t otherwise) {
    if (!given(bound)) {
      return otherwise;
    }
    const int64_t at = bound->AsInt();
    return std::clamp(at < 0 ? at + size : at, low, high);
  };
  const int64_t first = resolve(start, by < 0 ? high : low);
  const int64_t last = resolve(stop, by < 0 ? low : high);
  const int64_t distance = by < 0 ? first - last : last - first;
  const int64_t stride = by < 0 ? -by : by;
  return SliceRange{first, distance <= 0 ? 0 : (distance + stride - 1) / stride, by};
}

absl::StatusOr<Value> SliceString(Context& context, const Value& value, const Value* start,
                                  const Value* stop, const Value* step) {
  const absl::string_view bytes = value.bytes();
  context.Work(bytes.size());
  SHOAL_ASSIGN_OR_RETURN(const SliceRange range,
                         ResolveSlice(NumCodePoints(bytes), start, stop, step));
  if (range.step == 1) {
    const size_t begin = ByteOffset(bytes, range.start);
    const size_t length = ByteOffset(bytes.substr(begin), range.count);
    return context.NewString(value.AsString().Slice(begin, begin + length));
  }
  std::vector<size_t> offsets;
  for (size_t pos = 0; pos < bytes.size(); DecodeCodePoint(bytes, &pos)) {
    offsets.push_back(pos);
  }
  offsets.push_back(bytes.size());
  MarkedString result;
  for (int64_t i = 0; i < range.count; ++i) {
    const int64_t at = range.start + i * range.step;
    result.AppendRange(value.AsString(), offsets[at], offsets[at + 1]);
  }
  return context.NewString(std::move(result));
}

}  // namespace

absl::StatusOr<Value> GetAttribute(Context& context, const Value& value, absl::string_view name) {
  if (value.is_undefined()) {
    return absl::InvalidArgumentError(value.WhyUndefined());
  }
  const Value own = OwnAttribute(context, value, name);
  if (!Arguments::IsAbsent(own)) {
    return own;
  }
  const Value* entry = value.is(Kind::kDict)        ? value.AsDict().Find(name)
                       : value.is(Kind::kNamespace) ? value.AsNamespace().attributes.Find(name)
                                                    : nullptr;
  if (entry != nullptr) {
    return *entry;
  }
  if (value.is(Kind::kLoop)) {
    const Value attribute = LoopAttribute(context, value.AsLoop(), name);
    if (!Arguments::IsAbsent(attribute)) {
      return attribute;
    }
  }
  return NoAttribute(context, value, name);
}

absl::StatusOr<Value> GetItem(Context& context, const Value& value, const Value& key) {
  if (value.is_undefined()) {
    return absl::InvalidArgumentError(value.WhyUndefined());
  }
  if (key.is_integral() && (value.is_string() || value.is_sequence())) {
    return ItemAt(context, value, key.AsInt());
  }
  if (value.is(Kind::kDict)) {
    const Dict& dict = value.AsDict();
    if (key.is_string()) {
      if (const Value* found = dict.Find(key.bytes()); found != nullptr) {
        return *found;
      }
    } else if (key.is_number() || key.is(Kind::kNone) || key.is(Kind::kTuple)) {
      for (const Dict::Entry& entry : dict.entries()) {
        SHOAL_ASSIGN_OR_RETURN(const bool equal, Equals(context, entry.first, key));
        if (equal) {
          return entry.second;
        }
      }
    }
  }
  if (key.is_string()) {
    if (value.is(Kind::kNamespace) || value.is(Kind::kLoop)) {
      return GetAttribute(context, value, key.bytes());
    }
    const Value own = OwnAttribute(context, value, key.bytes());
    return Arguments::IsAbsent(own) ? NoAttribute(context, value, key.bytes()) : own;
  }
  std::string text;
  SHOAL_RETURN_IF_ERROR(AppendRepr(context, key, &text));
  return context.NewUndefined(absl::StrCat("'", value.TypeName(), "' has no element ", text));
}

absl::StatusOr<Value> GetSlice(Context& context, const Value& value, const Value* start,
                               const Value* stop, const Value* step) {
  if (value.is_undefined()) {
    return absl::InvalidArgumentError(value.WhyUndefined());
  }
  if (value.is_string()) {
    return SliceString(context, value, start, stop, step);
  }
  if (!value.is_sequence()) {
    return context.NewUndefined(absl::StrCat("'", value.TypeName(), "' has no slices"));
  }
  SHOAL_ASSIGN_OR_RETURN(const SliceRange range,
                         ResolveSlice(value.items().size(), start, stop, step));
  std::vector<Value> items;
  for (int64_t i = 0; i < range.count; ++i) {
    items.push_back(value.items()[range.start + i * range.step]);
  }
  return value.is(Kind::kList) ? context.NewList(std::move(items))
                               : context.NewTuple(std::move(items));
}

absl::StatusOr<Value> GetPath(Context& context, const Value& value, const Value& path,
                              const Value* otherwise) {
  auto item_or_default = [&](const Value& object, const Value& key) -> absl::StatusOr<Value> {
    SHOAL_ASSIGN_OR_RETURN(const Value item, GetItem(context, object, key));
    return item.is_undefined() && otherwise != nullptr ? *otherwise : item;
  };
  if (!path.is_string()) {
    return item_or_default(value, path);
  }
  Value at = value;
  for (absl::string_view part : absl::StrSplit(path.bytes(), '.')) {
    int64_t index;
    const Value key =
        absl::SimpleAtoi(part, &index) ? Value::Int(index) : context.NewUserString(part);
    SHOAL_ASSIGN_OR_RETURN(at, item_or_default(at, key));
  }
  return at;
}

}  // namespace shoal::text::jinja
