package nip_test

// The JSON shapes of the fixtures, as a peer would write them.

func scopeObject() obj {
	return obj{"workspace": "W", "task": fixTask, "revision": 7, "attempt": 2, "intent_digest": fixDigest}
}

func originalRefObject() obj {
	return obj{"source": "trace:2", "digest": fixDigest, "bytes": 100_000, "media_type": "application/x-ndjson"}
}

func pageCursorObject() obj {
	return obj{
		"scope": scopeObject(), "source": "trace:2", "source_digest": fixDigest, "source_bytes": 100_000,
		"next_step": 3, "prefix_digest": fixDigest,
	}
}

func chunkCursorObject() obj {
	return obj{
		"scope": scopeObject(), "source": "trace:2", "digest": fixDigest, "next_byte": 4, "prefix_digest": fixDigest,
	}
}

func readObject() obj {
	return obj{"workspace": "W", "task": fixTask, "revision": 7, "cursor": nil, "limit": 64}
}

func originalObject() obj {
	return obj{"scope": scopeObject(), "original": originalRefObject(), "cursor": nil, "limit": 16_384}
}

func validOperations() map[string]obj {
	image := obj{"digest": fixDigest, "media_type": "image/jpeg", "size": 8 << 20, "name": "é.jpg"}
	command := func(action, text string, emulate bool) obj {
		return obj{"kind": "task.command", "command": with(commandObject(), obj{"action": action, "text": text, "emulate": emulate})}
	}
	queue := func(edit obj) obj { return obj{"kind": "task.queue", "task": fixTask, "edit": edit} }
	return map[string]obj{
		"request_redeem":       {"kind": "enroll.redeem", "invitation": id("2"), "capability": id("5")},
		"request_list_devices": {"kind": "device.list"},
		"request_revoke":       {"kind": "device.revoke", "device": device},
		"request_task_create":  {"kind": "task.create", "task": obj{"title": "A title", "prompt": "Two\nlines", "workspace": "example"}},
		"create with all": {"kind": "task.create", "task": obj{"title": "A", "prompt": "P", "workspace": "W",
			"images": []any{image, with(image, obj{"digest": "sha256:" + id("b")})}, "engine": "claude_code"}},
		"request_task_steer":     {"kind": "task.steer", "task": fixTask, "revision": 1, "prompt": "no,\tleft"},
		"request_task_cancel":    {"kind": "task.cancel", "task": fixTask, "revision": 1, "reason": "enough"},
		"request_task_archive":   {"kind": "task.archive", "task": fixTask},
		"request_task_command":   command("steer", "left", true),
		"request_task_answer":    command("answer", "yes", false),
		"command interrupt":      command("interrupt", "stop", false),
		"command queue":          command("queue", "then this", false),
		"request_task_queue":     queue(obj{"action": "reorder", "commands": []any{id("6"), id("7")}}),
		"queue list":             queue(obj{"action": "list"}),
		"queue lease":            queue(obj{"action": "lease"}),
		"queue release":          queue(obj{"action": "release"}),
		"queue edit":             queue(obj{"action": "edit", "command": id("6"), "text": "other"}),
		"queue remove":           queue(obj{"action": "remove", "command": id("6")}),
		"queue send now":         queue(obj{"action": "send_now", "command": id("6")}),
		"request_workspace_list": {"kind": "workspace.list"},
		"request_task_list":      {"kind": "task.list", "query": obj{"workspace": "W", "cursor": nil, "limit": 64}},
		"task list on":           {"kind": "task.list", "query": obj{"workspace": "W", "cursor": obj{"workspace": "W", "snapshot_digest": fixDigest, "next": 64}, "limit": 1}},
		"request_task_read":      {"kind": "task.read", "query": readObject()},
		"task read on":           {"kind": "task.read", "query": with(readObject(), obj{"cursor": pageCursorObject()})},
		"task read, newest":      {"kind": "task.read", "query": with(readObject(), obj{"revision": nil, "task": "local-1_a.b"})},
		"request_task_original":  {"kind": "task.original", "query": originalObject()},
		"task original on":       {"kind": "task.original", "query": with(originalObject(), obj{"cursor": chunkCursorObject()})},
		"task original, no turn": {"kind": "task.original", "query": with(originalObject(), obj{
			"scope": with(scopeObject(), obj{"attempt": nil}), "original": with(originalRefObject(), obj{"source": "artifact:" + id("c")})})},
		"unserved, name only": {"kind": "thread.list"},

		"request_approve":       approveObject(),
		"request_deny":          {"kind": "enroll.deny", "enrollment": fixTask, "request_digest": fixDigest},
		"request_invite":        {"kind": "invite.create", "rights": []any{"observe", "operate"}, "grant_expires_at": issued + 86_400},
		"request_cancel_invite": {"kind": "invite.cancel", "invitation": id("2")},
		"exact command":         exactCommandObject(),
		"exact queue":           exactQueueObject(),
		"exact queue, first":    with(exactQueueObject(), obj{"edit": obj{"action": "list"}, "queue_digest": nil}),
		"exact queue, again":    with(exactQueueObject(), obj{"edit": obj{"action": "list"}}),
		"recovery":              {"kind": "request.operation", "request": id("a"), "request_event": id("b")},
		"artifact":              putObject(nil),
		"artifact's last byte":  putObject(obj{"size": 8 << 20, "offset": 8<<20 - 1, "data": "AA==", "media_type": "image/jpeg"}),
	}
}

func approveObject() obj {
	return obj{
		"kind": "enroll.approve", "enrollment": fixTask, "request_digest": fixDigest, "code": "7K3M-Q9TX",
		"device": device, "rights": []any{"observe", "operate"}, "grant_expires_at": issued + 86_400,
	}
}

func exactCommandObject() obj {
	return obj{"kind": "task.command.at_revision", "command": commandObject(), "revision": 3}
}

func exactQueueObject() obj {
	return obj{
		"kind": "task.queue.at_revision", "task": fixTask, "revision": 4, "queue_digest": fixDigest,
		"edit": obj{"action": "remove", "command": id("6")},
	}
}

func putObject(change obj) obj {
	return obj{"kind": "artifact.put", "artifact": with(obj{
		"digest": fixDigest, "media_type": "image/png", "size": 10, "offset": 2, "data": "AAECAwQFBgc=",
	}, change)}
}
