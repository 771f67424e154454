package sandbox

import "strings"

const (
	homeDir     = "/run/home"
	tmpDir      = "/tmp"
	replyDir    = "/run/holdfast"
	replyPath   = replyDir + "/reply.json"
	historyPath = "/run/holdfast-history.jsonl"

	maxVariables = 128
	maxVariable  = 32 << 10
)

// ownNames are set by the sandbox and may not be given.
var ownNames = map[string]bool{"PATH": true, "HOME": true, "TMPDIR": true}

// loaderNames make a loader, shell or interpreter run code that nobody asked
// for, or point git at another repository.
var loaderNames = map[string]bool{
	"BASH_ENV": true, "ENV": true, "NODE_OPTIONS": true, "GLIBC_TUNABLES": true, "SHELLOPTS": true, "BASHOPTS": true,
	"PYTHONSTARTUP": true, "PYTHONINSPECT": true, "PERL5OPT": true, "RUBYOPT": true, "IFS": true, "PS4": true,
	"JAVA_TOOL_OPTIONS": true, "_JAVA_OPTIONS": true,
}

// environ builds the whole environment from nothing. LANG may be overridden.
func environ(s Spec) ([]string, error) {
	env := []string{
		"PATH=/usr/local/bin:/usr/bin:/bin",
		"HOME=" + homeDir,
		"TMPDIR=" + tmpDir,
	}
	if s.ReplyLimit > 0 {
		env = append(env, "HOLDFAST_REPLY="+replyPath)
	}
	if s.History != nil {
		env = append(env, "HOLDFAST_HISTORY="+historyPath)
	}
	if s.Git == GitRead {
		// The common directory is read-only: without the first, git status
		// fails to refresh its index. The second lets git work where the
		// repository belongs to another user of the host.
		env = append(env, "GIT_OPTIONAL_LOCKS=0",
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
	}
	if s.Network == NetworkAllow {
		env = append(env, proxyVariables()...)
	}
	if len(s.Environment) > maxVariables {
		return nil, refuse("%d environment variables, at most %d", len(s.Environment), maxVariables)
	}
	seen := map[string]bool{}
	for i, v := range s.Environment {
		name, _, found := strings.Cut(v, "=")
		switch {
		case !found || !validName(name) || strings.IndexByte(v, 0) >= 0 || len(v) > maxVariable:
			return nil, refuse("environment variable %d is malformed", i)
		case seen[name]:
			return nil, refuse("environment variable %s is given twice", name)
		case ownNames[name] || strings.HasPrefix(name, "HOLDFAST_") || s.Network == NetworkAllow && proxyNames[name]:
			return nil, refuse("environment variable %s is set by the sandbox", name)
		case loaderNames[name] || strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "DYLD_") ||
			strings.HasPrefix(name, "GIT_") || strings.HasPrefix(name, "BASH_FUNC_"):
			return nil, refuse("environment variable %s could change what runs", name)
		}
		seen[name] = true
		env = append(env, v)
	}
	if !seen["LANG"] {
		env = append(env, "LANG=C.UTF-8")
	}
	return env, nil
}

// validName accepts what every shell accepts as a variable's name.
func validName(name string) bool {
	for i, c := range []byte(name) {
		letter := c == '_' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != "" && len(name) <= 128
}
