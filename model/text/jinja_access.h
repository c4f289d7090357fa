#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/text/jinja_context.h"
#include "model/text/jinja_value.h"

namespace shoal::text::jinja {

// What `.` and `[]` do. A missing attribute or item is an undefined value that says what is
// missing; an attribute of an undefined value is INVALID_ARGUMENT.

// value.name: a method or attribute before an entry of that key.
absl::StatusOr<Value> GetAttribute(Context& context, const Value& value, absl::string_view name);

// value[key]: an entry before a method or attribute.
absl::StatusOr<Value> GetItem(Context& context, const Value& value, const Value& key);

// value[start:stop:step] of a string, list or tuple; null: not given. Strings keep their marks.
absl::StatusOr<Value> GetSlice(Context& context, const Value& value, const Value* start,
                               const Value* stop, const Value* step);

// The `attribute` argument of map, join, sort ...: "a.b.0", or an index. `otherwise`, if not null,
// stands for whatever is missing on the way.
absl::StatusOr<Value> GetPath(Context& context, const Value& value, const Value& path,
                              const Value* otherwise = nullptr);

}  // namespace shoal::text::jinja
