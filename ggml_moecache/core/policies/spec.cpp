#include "core/policies/spec.h"

#include "core/policies/table.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace moecache {

// A number that `rule` allows, written in decimal without sign, blanks or exponent.
static bool parse_number(const std::string & text, const parameter_info & rule, double & number) {
    const char * digits = rule.kind == value_kind::whole ? "0123456789" : "0123456789.";
    if (text.empty() || text.size() > 18 || text.find_first_not_of(digits) != std::string::npos) {
        return false;
    }
    char * end = nullptr;
    number     = std::strtod(text.c_str(), &end);
    return *end == '\0' && number >= rule.least && number <= rule.most;
}

static bool is_choice(const std::string & text, const char * words) {
    const std::string all = std::string("|") + words + "|";
    return !text.empty() && text.find('|') == std::string::npos && all.find("|" + text + "|") != std::string::npos;
}

static size_t index_of(const policy_info & info, const std::string & name) {
    size_t index = 0;
    while (index < info.parameters.size() && name != info.parameters[index].name) {
        index++;
    }
    return index;
}

std::string policy_spec::set(size_t index, const std::string & value) {
    const parameter_info & rule   = info->parameters[index];
    double                 number = 0;
    bool                   good   = !value.empty();
    if (rule.kind == value_kind::whole || rule.kind == value_kind::real) {
        good = parse_number(value, rule, number);
    } else if (rule.kind == value_kind::choice) {
        good = is_choice(value, rule.values);
    }
    if (!good) {
        return std::string("policy ") + info->name + ": " + rule.name + " must be " + rule.values + ". Got '" + value +
               "' instead.";
    }
    // Numbers are kept in one form, so that equal specifications have equal names: 064 is 64, 2.50 is 2.5.
    values[index] = value;
    if (rule.kind == value_kind::whole) {
        values[index].erase(0, std::min(value.find_first_not_of('0'), value.size() - 1));
    } else if (rule.kind == value_kind::real) {
        char text[64];
        std::snprintf(text, sizeof(text), "%.15g", number);
        values[index] = text;
    }
    given[index] = true;
    return "";
}

std::string policy_spec::parse(const std::string & text, policy_spec & out) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(':', begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    out      = policy_spec();
    out.info = find_policy(parts[0]);
    if (out.info == nullptr) {
        return "there is no policy '" + parts[0] + "'. The policies are: " + policy_names();
    }
    const policy_info & info = *out.info;
    for (const parameter_info & parameter : info.parameters) {
        out.values.emplace_back(parameter.default_value);
        out.given.push_back(false);
    }
    for (size_t i = 1; i < parts.size(); i++) {
        const size_t      equals = parts[i].find('=');
        const std::string name   = parts[i].substr(0, equals);
        const size_t      index  = index_of(info, name);
        if (equals == std::string::npos || index == info.parameters.size()) {
            return std::string("policy ") + info.name + ": '" + parts[i] +
                   "' must be parameter=value with one of: " + parameter_names(info);
        }
        if (out.given[index]) {
            return std::string("policy ") + info.name + ": " + name + " is given twice";
        }
        const std::string error = out.set(index, parts[i].substr(equals + 1));
        if (!error.empty()) {
            return error;
        }
    }
    for (size_t i = 0; i < info.parameters.size(); i++) {
        if (out.values[i].empty()) {
            return std::string("policy ") + info.name + ": " + info.parameters[i].name +
                   "= must be given: " + info.parameters[i].summary;
        }
    }
    return "";
}

std::string policy_spec::set_default(const char * name, const std::string & value) {
    const size_t index = index_of(*info, name);
    return given[index] ? "" : set(index, value);
}

bool policy_spec::has(const char * name) const {
    return index_of(*info, name) < info->parameters.size();
}

const std::string & policy_spec::text(const char * name) const {
    return values[index_of(*info, name)];
}

int64_t policy_spec::whole(const char * name) const {
    return std::strtoll(text(name).c_str(), nullptr, 10);
}

double policy_spec::real(const char * name) const {
    return std::strtod(text(name).c_str(), nullptr);
}

std::string policy_spec::canonical() const {
    std::string result = info->name;
    for (size_t i = 0; i < values.size(); i++) {
        if (values[i] != info->parameters[i].default_value) {
            result += std::string(":") + info->parameters[i].name + "=" + values[i];
        }
    }
    return result;
}

} // namespace moecache
