#pragma once
#include "abi.h"

// kv_load loads the library, once for the process. 0, or -1 with the reason in text,
// which has n bytes.
int kv_load(const char *path, char *text, int n);

// kv_query opens a device by its name, and asks for its limits and those of a port. 0,
// or an errno with the name of what failed in *what.
int kv_query(const char *name, uint8_t port, struct kv_device_attr *device, struct kv_port_attr *attr, const char **what);
