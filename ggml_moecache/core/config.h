// Configuration: every variable of the library, in one table with default, unit and rule. `moecache config` and the
// documentation print this table; nothing else in the library reads the environment.
//
// A variable is set by the environment or, inside the process, by config_set(), which wins. Values are checked when
// they are set and again when the library is loaded; a context reads them once, when it is created.
#pragma once

#include "core/capacity.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace moecache {

struct variable_info {
    const char * name;          // as in the environment
    const char * default_value; // "" = none
    const char * values;        // what it takes, for people
    const char * summary;
};

// All variables in the order in which they are documented.
const variable_info * variable_table(size_t & n_variables);

// The value in force ("" when there is none). REQUIRES: `name` is in the table.
std::string config_get(const char * name);

// Set `name` for this process; NULL takes the setting back. Returns "" or a message that names the variable, the rule
// and the value.
std::string config_set(const char * name, const char * value);

// The first error among the values in force, or "". With MOECACHE_REQUIRE=1 a name of config_unknown() is one.
std::string config_check();

// Variables of the environment that begin as ours do and are none, a misspelt one maybe. In rising order.
std::vector<std::string> config_unknown();

// The settings of one llama context, parsed. Only valid when config_check() is "".
struct config {
    capacity_setting capacity;
    bool             per_layer = false;         // every layer has a budget of its own
    std::string      policy;                    // as in core/policies/spec.h
    bool             sync          = false;     // wait for every copy: runs can be repeated byte for byte
    uint64_t         reserve_bytes = 0;         // device memory that capacity `auto` leaves free
    double           expert_share  = 0;         // of what is free, for experts: backend/reservation.h
    bool             require       = false;     // every fallback is an error
    std::string      status_file;               // "" = none
    std::string      state_in;                  // session state that the cache starts from, "" = none
    std::string      state_out;                 // where it is written when the context closes, "" = nowhere
    std::string      log_folder;                // "" = no log
    bool             log_live          = false; // the ring is read inside the process
    bool             log_wait          = false; // a full ring makes the model wait
    uint64_t         n_log_ring_events = 0;
};

config   config_read();
size_t   config_standins();         // GGML_MOECACHE_STANDIN: wrap the CPU so many times when there is no GPU
uint64_t config_device_cap_bytes(); // GGML_MOECACHE_DEVICE_MIB in bytes, 0 = no cap

// How slow the stand-in's copies are, for tests.
struct standin_copy_speed {
    uint64_t delay_us  = 0; // of every copy
    uint64_t mib_per_s = 0; // 0 = as fast as it goes
};
standin_copy_speed config_standin_copies();

} // namespace moecache
