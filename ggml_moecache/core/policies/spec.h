// What a user writes for a policy, `name:parameter=value:parameter=value`, checked against the table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moecache {

enum class value_kind { whole, real, choice, text };

struct parameter_info {
    const char * name;
    value_kind   kind;
    const char * unit;          // "" = none
    const char * default_value; // "" = must be given
    const char * values;        // the rule for people; of a choice the words, separated by |
    double       least;         // of numbers
    double       most;
    const char * summary;
};

struct policy_info {
    const char *                name;
    const char *                summary;
    std::vector<parameter_info> parameters;
    bool                        needs_future; // it must see the whole trace beforehand: no runtime can run it
    bool per_access_only = false;             // for comparisons with other simulators: no event has two items
    bool by_requests     = false;             // it looks at the request of an event
};

// A policy with a value for each of its parameters.
class policy_spec {
public:
    const policy_info * info = nullptr;

    // REQUIRES: `name` is a parameter of the kind asked for; real() takes whole numbers too.
    int64_t             whole(const char * name) const;
    double              real(const char * name) const;
    const std::string & text(const char * name) const;
    bool                has(const char * name) const; // a parameter of this policy

    // As a user would write it: parameters that are not the default, in the order of the table.
    std::string canonical() const;

    // Returns "" or a message that names the policy, the parameter, the rule and the value.
    static std::string parse(const std::string & text, policy_spec & out);

    // Give `name` a value unless the text already did; for settings that come from elsewhere (a seed).
    std::string set_default(const char * name, const std::string & value);

private:
    std::string set(size_t index, const std::string & value);

    std::vector<std::string> values; // [parameters]
    std::vector<bool>        given;
};

} // namespace moecache
