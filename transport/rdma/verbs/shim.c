//go:build cgo && linux

#define _GNU_SOURCE
#include "shim.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FUNCTIONS(X) \
	X(struct kv_device **, ibv_get_device_list, (int *)) \
	X(void, ibv_free_device_list, (struct kv_device **)) \
	X(const char *, ibv_get_device_name, (struct kv_device *)) \
	X(struct kv_context *, ibv_open_device, (struct kv_device *)) \
	X(int, ibv_close_device, (struct kv_context *)) \
	X(int, ibv_query_device, (struct kv_context *, struct kv_device_attr *)) \
	X(int, ibv_query_port, (struct kv_context *, uint8_t, struct kv_port_attr *))

static struct library {
#define MEMBER(result, name, arguments) result(*name) arguments;
	FUNCTIONS(MEMBER)
} lib;

int kv_load(const char *path, char *text, int n)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		snprintf(text, n, "%s", dlerror());
		return -1;
	}
	struct library found;
	// Version 1.0 of some of them has other arguments: the version is asked for first.
#define FIND(result, name, arguments) \
	found.name = (result(*) arguments)dlvsym(handle, #name, "IBVERBS_1.1"); \
	if (!found.name) \
		found.name = (result(*) arguments)dlsym(handle, #name); \
	if (!found.name) { \
		snprintf(text, n, "%s has no %s", path, #name); \
		dlclose(handle); \
		return -1; \
	}
	FUNCTIONS(FIND)
	lib = found;
	return 0;
}

int kv_query(const char *name, uint8_t port, struct kv_device_attr *device, struct kv_port_attr *attr, const char **what)
{
	*what = "ibv_get_device_list";
	int n = 0, error = ENODEV;
	struct kv_device **list = lib.ibv_get_device_list(&n);
	if (!list)
		return errno ? errno : ENODEV;
	struct kv_context *context = 0;
	for (int i = 0; i < n; i++) {
		if (strcmp(name, lib.ibv_get_device_name(list[i])) == 0) {
			*what = "ibv_open_device";
			errno = 0;
			context = lib.ibv_open_device(list[i]);
			error = errno ? errno : EIO;
			break;
		}
	}
	lib.ibv_free_device_list(list);
	if (!context)
		return error;
	*what = "ibv_query_device";
	error = lib.ibv_query_device(context, device);
	if (error == 0) {
		*what = "ibv_query_port";
		memset(attr, 0, sizeof *attr);
		error = lib.ibv_query_port(context, port, attr);
	}
	lib.ibv_close_device(context);
	return error;
}
