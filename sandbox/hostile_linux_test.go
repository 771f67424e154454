package sandbox_test

func hostileMain(args []string) {}
