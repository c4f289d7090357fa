#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/text/jinja_access.h"
#include "model/text/jinja_context.h"
#include "model/text/jinja_filters.h"
#include "model/text/jinja_operators.h"
#include "model/text/jinja_text.h"
#include "model/text/jinja_unicode.h"

namespace shoal::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// What a value is sorted and compared by: its attribute, in lower case unless told otherwise.
struct KeyOf {
  const Value* attribute = nullptr;  // null: the value itself
  bool case_sensitive = false;

  Result operator()(Context& context, const Value& value) const {
    Value key = value;
    if (attribute != nullptr && !attribute->is(Kind::kNone)) {
      SHOAL_ASSIGN_OR_RETURN(key, GetPath(context, value, *attribute));
    }
    SHOAL_RETURN_IF_ERROR(context.Step());
    return key.is_string() && !case_sensitive ? context.NewUserString(ToLower(key.bytes())) : key;
  }
};

absl::StatusOr<std::vector<Value>> Keys(Context& context, absl::Span<const Value> items,
                                        const KeyOf& key_of) {
  std::vector<Value> keys;
  for (const Value& item : items) {
    SHOAL_ASSIGN_OR_RETURN(const Value key, key_of(context, item));
    keys.push_back(key);
  }
  return keys;
}

// Indices of `keys` in ascending (or descending) order, equal ones as they were.
absl::StatusOr<std::vector<size_t>> SortedOrder(Context& context, absl::Span<const Value> keys,
                                                bool reverse) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  absl::Status status;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (!status.ok()) {
      return false;  // the order is void; everything equal ends the sort soonest
    }
    const absl::StatusOr<bool> less =
        reverse ? Less(context, keys[b], keys[a]) : Less(context, keys[a], keys[b]);
    status = less.status();
    return less.ok() && *less;
  });
  SHOAL_RETURN_IF_ERROR(status);
  return order;
}

Result First(Context& context, const Value& input, const Arguments& args) {
  if (input.is_string()) {
    return GetItem(context, input, Value::Int(0));
  }
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(context, input));
  return items.empty() ? context.NewUndefined("No first item, sequence was empty.") : items.front();
}

Result Last(Context& context, const Value& input, const Arguments& args) {
  if (input.is_string()) {
    return GetItem(context, input, Value::Int(-1));
  }
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(context, input));
  return items.empty() ? context.NewUndefined("No last item, sequence was empty.") : items.back();
}

Result Length(Context& context, const Value& input, const Arguments& args) {
  switch (input.kind()) {
    case Kind::kUndefined:
      return Value::Int(0);
    case Kind::kString:
      context.Work(input.bytes().size());
      return Value::Int(NumCodePoints(input.bytes()));
    case Kind::kList:
    case Kind::kTuple:
      return Value::Int(input.items().size());
    case Kind::kDict:
      return Value::Int(input.AsDict().size());
    case Kind::kLoop:
      return Value::Int(input.AsLoop().items.size());
    default:
      return absl::InvalidArgumentError(absl::StrCat(input.TypeName(), " has no length"));
  }
}

Result Items(Context& context, const Value& input, const Arguments& args) {
  std::vector<Value> items;
  if (!input.is_undefined() && !input.is(Kind::kDict)) {
    return absl::InvalidArgumentError(absl::StrCat("items needs a dict, not ", input.TypeName()));
  }
  if (input.is(Kind::kDict)) {
    for (const auto& [key, value] : input.AsDict().entries()) {
      items.push_back(context.NewTuple({key, value}));
    }
  }
  return context.NewList(std::move(items));
}

Result List(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(context, input));
  return context.NewList(std::move(items));
}

Result Reverse(Context& context, const Value& input, const Arguments& args) {
  if (input.is_string()) {
    const Value step = Value::Int(-1);
    SHOAL_ASSIGN_OR_RETURN(const Value text, GetSlice(context, input, nullptr, nullptr, &step));
    return context.NewUserString(text.bytes());
  }
  SHOAL_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(context, input));
  std::reverse(items.begin(), items.end());
  return context.NewList(std::move(items));
}

Result Join(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(context, input));
  if (const Value* attribute = args.Get(1); attribute != nullptr && !attribute->is(Kind::kNone)) {
    for (Value& item : items) {
      SHOAL_ASSIGN_OR_RETURN(item, GetPath(context, item, *attribute));
      SHOAL_RETURN_IF_ERROR(context.Step());
    }
  }
  const Value separator = args.Get(0) != nullptr ? *args.Get(0) : context.NewUserString("");
  SHOAL_RETURN_IF_ERROR(StringArgument(&separator, "the separator of join", "").status());
  return JoinText(context, separator, items);
}

Result Sort(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(context, input));
  const KeyOf key_of{args.Get(2), BoolArgument(args.Get(1), false)};
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> keys, Keys(context, items, key_of));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<size_t> order,
                         SortedOrder(context, keys, BoolArgument(args.Get(0), false)));
  std::vector<Value> sorted;
  for (size_t i : order) {
    sorted.push_back(items[i]);
  }
  return context.NewList(std::move(sorted));
}

Result DictSort(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const absl::string_view by, StringArgument(args.Get(1), "by", "key"));
  if (!input.is(Kind::kDict) || (by != "key" && by != "value")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dictsort sorts a dict by 'key' or 'value', not ", input.TypeName(), " by '", by, "'"));
  }
  SHOAL_ASSIGN_OR_RETURN(const Value pairs, Items(context, input, {}));
  std::vector<Value> sort_by;
  for (const Value& pair : pairs.items()) {
    sort_by.push_back(pair.items()[by == "key" ? 0 : 1]);
  }
  const KeyOf key_of{nullptr, BoolArgument(args.Get(0), false)};
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> keys, Keys(context, sort_by, key_of));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<size_t> order,
                         SortedOrder(context, keys, BoolArgument(args.Get(2), false)));
  std::vector<Value> sorted;
  for (size_t i : order) {
    sorted.push_back(pairs.items()[i]);
  }
  return context.NewList(std::move(sorted));
}

Result Unique(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(context, input));
  const KeyOf key_of{args.Get(1), BoolArgument(args.Get(0), false)};
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> keys, Keys(context, items, key_of));
  absl::flat_hash_set<absl::string_view> seen_strings;
  std::vector<Value> seen_others;
  std::vector<Value> result;
  for (size_t i = 0; i < items.size(); ++i) {
    bool is_new = true;
    if (keys[i].is_string()) {
      is_new = seen_strings.insert(keys[i].bytes()).second;
    } else {
      for (size_t j = 0; j < seen_others.size() && is_new; ++j) {
        SHOAL_ASSIGN_OR_RETURN(const bool equal, Equals(context, seen_others[j], keys[i]));
        is_new = !equal;
      }
      seen_others.push_back(keys[i]);
    }
    if (is_new) {
      result.push_back(items[i]);
    }
  }
  return context.NewList(std::move(result));
}

Result Extreme(Context& context, const Value& input, const Arguments& args, bool want_max) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(context, input));
  if (items.empty()) {
    return context.NewUndefined("No aggregated item, sequence was empty.");
  }
  const KeyOf key_of{args.Get(1), BoolArgument(args.Get(0), false)};
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> keys, Keys(context, items, key_of));
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const bool better, want_max ? Less(context, keys[best], keys[i])
                                                       : Less(context, keys[i], keys[best]));
    if (better) {
      best = i;
    }
  }
  return items[best];
}

Result Min(Context& context, const Value& input, const Arguments& args) {
  return Extreme(context, input, args, false);
}

Result Max(Context& context, const Value& input, const Arguments& args) {
  return Extreme(context, input, args, true);
}

Result Sum(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(context, input));
  Value sum = args.Get(1) != nullptr ? *args.Get(1) : Value::Int(0);
  const KeyOf key_of{args.Get(0), true};
  for (const Value& item : items) {
    SHOAL_ASSIGN_OR_RETURN(const Value term, key_of(context, item));
    SHOAL_ASSIGN_OR_RETURN(sum, Arithmetic(context, "+", sum, term));
  }
  return sum;
}

// map(attribute=..., default=...) or map('filter', arguments ...).
Result Map(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(context, input));
  const Value* attribute = args.Get("attribute");
  const Native* filter = nullptr;
  if (args.positional.empty()) {
    if (attribute == nullptr) {
      return absl::InvalidArgumentError("map needs the name of a filter, or attribute=");
    }
  } else {
    SHOAL_ASSIGN_OR_RETURN(const absl::string_view name,
                           StringArgument(&args.positional[0], "map's filter", ""));
    filter = FindFilter(name);
    if (filter == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("there is no filter '", name, "'"));
    }
  }
  Nesting nesting(context);  // map('map', 'map' ...)
  std::vector<Value> result;
  for (const Value& item : items) {
    SHOAL_RETURN_IF_ERROR(nesting.Check());
    Value mapped;
    if (filter != nullptr) {
      SHOAL_ASSIGN_OR_RETURN(
          mapped, CallNative(*filter, context, item, {args.positional.subspan(1), args.named}));
    } else {
      SHOAL_ASSIGN_OR_RETURN(mapped, GetPath(context, item, *attribute, args.Get("default")));
    }
    result.push_back(mapped);
  }
  return context.NewList(std::move(result));
}

// select('test', arguments ...) and its kin: keeps the items, or with `by_attribute` those whose
// attribute (the first argument), for which the test (truth, if not named) is `keep_if`.
Result Filter(Context& context, const Value& input, const Arguments& args, bool by_attribute,
              bool keep_if) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(context, input));
  absl::Span<const Value> rest = args.positional;
  const Value* attribute = nullptr;
  if (by_attribute) {
    if (rest.empty()) {
      return absl::InvalidArgumentError("selectattr and rejectattr need the name of an attribute");
    }
    attribute = &rest[0];
    rest.remove_prefix(1);
  }
  const Native* test = nullptr;
  if (!rest.empty()) {
    SHOAL_ASSIGN_OR_RETURN(const absl::string_view name, StringArgument(&rest[0], "the test", ""));
    test = FindTest(name);
    if (test == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("there is no test '", name, "'"));
    }
    rest.remove_prefix(1);
  }
  std::vector<Value> result;
  for (const Value& item : items) {
    SHOAL_RETURN_IF_ERROR(context.Step());
    Value subject = item;
    if (attribute != nullptr) {
      SHOAL_ASSIGN_OR_RETURN(subject, GetPath(context, item, *attribute));
    }
    if (test != nullptr) {
      SHOAL_ASSIGN_OR_RETURN(subject, CallNative(*test, context, subject, {rest, args.named}));
    }
    if (subject.IsTrue() == keep_if) {
      result.push_back(item);
    }
  }
  return context.NewList(std::move(result));
}

Result Select(Context& context, const Value& input, const Arguments& args) {
  return Filter(context, input, args, false, true);
}

Result Reject(Context& context, const Value& input, const Arguments& args) {
  return Filter(context, input, args, false, false);
}

Result SelectAttr(Context& context, const Value& input, const Arguments& args) {
  return Filter(context, input, args, true, true);
}

Result RejectAttr(Context& context, const Value& input, const Arguments& args) {
  return Filter(context, input, args, true, false);
}

constexpr Native kFilters[] = {
    {"count", &Length},
    {"dictsort", &DictSort, {"case_sensitive", "by", "reverse"}},
    {"first", &First},
    {"items", &Items},
    {"join", &Join, {"d", "attribute"}},
    {"last", &Last},
    {"length", &Length},
    {"list", &List},
    {"map", &Map, {}, 0, true},
    {"max", &Max, {"case_sensitive", "attribute"}},
    {"min", &Min, {"case_sensitive", "attribute"}},
    {"reject", &Reject, {}, 0, true},
    {"rejectattr", &RejectAttr, {}, 0, true},
    {"reverse", &Reverse},
    {"select", &Select, {}, 0, true},
    {"selectattr", &SelectAttr, {}, 0, true},
    {"sort", &Sort, {"reverse", "case_sensitive", "attribute"}},
    {"sum", &Sum, {"attribute", "start"}},
    {"unique", &Unique, {"case_sensitive", "attribute"}},
};

}  // namespace

absl::Span<const Native> SequenceFilters() { return kFilters; }

}  // namespace shoal::text::jinja
