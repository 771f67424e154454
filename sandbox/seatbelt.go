package sandbox

import (
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// seatbelt is what a macOS profile is made from. All paths are real: the kernel
// matches what a path resolves to, so a rule about /tmp or /var never applies.
// Building the text needs no Mac, and is tested everywhere.
type seatbelt struct {
	self      string // this binary, which waits at the gate inside
	program   string
	workspace string
	write     bool
	temp      string // private directory of the turn, always writable
	read      []string
	hidden    []string // neither read nor written, whatever lies around them
	sealed    []string // read where something else allows it, never written
	protected []string // never reached; the workspace may lie in one
	home      string   // of the user, whose keychains are never reached
	network   bool
}

// Places of every Mac. The toolchains are executed and read where they exist.
var (
	seatbeltTools = []string{"/bin", "/sbin", "/usr", "/opt/homebrew", "/Library/Developer", "/System/Library", "/System/Cryptexes",
		"/Applications/Xcode.app"}
	seatbeltReads = []string{"/Library/Apple", "/System/Volumes/Preboot/Cryptexes", "/private/var/db/dyld",
		"/private/var/db/timezone", "/private/etc/ssl", "/dev/fd"}
	seatbeltFiles = []string{"/", "/etc", "/var", "/tmp", "/private/etc/hosts", "/private/etc/localtime", "/private/etc/protocols",
		"/private/etc/services", "/private/var/select/sh", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom",
		"/dev/dtracehelper"}
	seatbeltDevices   = []string{"/dev/null", "/dev/zero", "/dev/dtracehelper"}
	seatbeltKeychains = []string{"/Library/Keychains", "/System/Library/Keychains", "/private/var/db/SystemKey"}
	seatbeltServices  = []string{"com.apple.system.logger", "com.apple.system.notification_center",
		"com.apple.system.opendirectoryd.libinfo"}
)

// profile is the text for sandbox-exec, in the order in which the kernel reads
// it: of the rules that match, the last one holds.
func (s seatbelt) profile() (string, error) {
	for _, p := range slices.Concat([]string{s.self, s.program, s.workspace, s.temp}, s.read, s.hidden, s.sealed, s.protected) {
		if !canonical(p) || !printable(p) {
			return "", refuse("%q cannot be named in a profile: it must be a canonical path of printable characters", p)
		}
	}
	var b strings.Builder
	b.WriteString("(version 1)\n(deny default)\n")
	rule := func(verb string, filters ...string) {
		if len(filters) > 0 {
			b.WriteString("(" + verb + "\n\t" + strings.Join(filters, "\n\t") + ")\n")
		}
	}
	tools := each("subpath", seatbeltTools)
	b.WriteString("(allow process-fork)\n(allow signal (target same-sandbox))\n(allow process-info* (target same-sandbox))\n(allow sysctl-read)\n")
	rule("allow file-read*", slices.Concat(tools, each("subpath", seatbeltReads), each("literal", seatbeltFiles))...)
	rule("allow file-write-data", each("literal", seatbeltDevices)...)
	b.WriteString("(allow file-ioctl (literal \"/dev/dtracehelper\"))\n")
	rule("allow mach-lookup", each("global-name", seatbeltServices)...)
	// What the workspace lies in is closed before the workspace is opened.
	around, apart := s.split()
	rule("deny file-read* file-write*", each("subpath", around)...)
	shown := slices.Concat([]string{s.self, s.program, s.workspace, s.temp}, s.read)
	rule("allow file-read-metadata", each("literal", above(shown))...)
	rule("allow file-read*", each("subpath", shown)...)
	writable := []string{s.temp}
	if s.write {
		writable = append(writable, s.workspace)
	}
	rule("allow file-write*", each("subpath", writable)...)
	rule("allow process-exec*", slices.Concat(each("literal", []string{s.self, s.program}), tools, each("subpath", []string{s.workspace, s.temp}),
		each("subpath", s.read))...)
	rule("deny file-write*", each("subpath", s.sealed)...)
	keychains := seatbeltKeychains
	if s.home != "" {
		if !canonical(s.home) || !printable(s.home) {
			return "", refuse("the home %q cannot be named in a profile", s.home)
		}
		keychains = append(keychains[:len(keychains):len(keychains)], s.home+"/Library/Keychains")
	}
	rule("deny file-read* file-write* process-exec*", each("subpath", slices.Concat(s.hidden, apart, keychains))...)
	if s.network {
		b.WriteString("(allow network*)\n(allow system-socket)\n(allow mach-lookup (global-name \"com.apple.dnssd.service\"))\n")
	} else {
		b.WriteString("(deny network*)\n")
	}
	return b.String(), nil
}

// split tells the protected paths that hold the workspace from the others.
func (s seatbelt) split() (around, apart []string) {
	for _, p := range s.protected {
		if within(s.workspace, p) {
			around = append(around, p)
		} else {
			apart = append(apart, p)
		}
	}
	return around, apart
}

// above lists the directories that a path walk goes through, each once.
func above(paths []string) []string {
	var dirs []string
	for _, p := range paths {
		for dir := path.Dir(p); dir != "/"; dir = path.Dir(dir) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

func each(filter string, values []string) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = "(" + filter + " " + quoteSBPL(v) + ")"
	}
	return out
}

// quoteSBPL is a string of the profile language. Only what printable accepts
// may be given.
func quoteSBPL(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// printable refuses what the profile's reader might take otherwise than meant:
// control characters and what is not UTF-8.
func printable(s string) bool {
	for _, r := range s {
		if r < 0x20 || r == 0x7f {
			return false
		}
	}
	return utf8.ValidString(s)
}
