package commands

import (
	"bytes"
	"flag"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "record testdata/decide anew")

// The recorded table is testdata/decide: first.txt for what is asked before the
// action, and a file for each action. A row names the cells it speaks of and
// their decision; "*" is every value, "a|b" either, "!a|b" all but these. A line "every row:" fixes
// what the whole file shares. The form of the rows carries no promise: the test
// expands them and counts cells.

// tableRow is one row of the table.
type tableRow struct {
	where    string // file and line
	block    block
	decision string
}

// tableFiles are the files, in the order of the wire's table.
var tableFiles = append([]string{"first"}, space[dimAction].values[:5]...)

// TestDecideTable: every cell of the full product is spoken of by exactly one
// row, and is decided as that row says.
func TestDecideTable(t *testing.T) {
	t.Parallel()
	if *update {
		recordTable(t)
	}
	var rows []tableRow
	for _, name := range tableFiles {
		rows = append(rows, readTable(t, name)...)
	}
	covered := make([]uint16, cellCount()) // the row's number, from 1
	for i, row := range rows {
		row.block.each(func(n int) bool {
			if other := covered[n]; other != 0 {
				t.Fatalf("%s and %s both speak of %v", rows[other-1].where, row.where, cellAt(n))
			}
			covered[n] = uint16(i + 1)
			return true
		})
	}
	says := make(map[Decision]string)
	for n, d := range decideAll() {
		if covered[n] == 0 {
			t.Fatalf("no row speaks of %v", cellAt(n))
		}
		if _, ok := says[d]; !ok {
			says[d] = d.String()
		}
		if row := rows[covered[n]-1]; says[d] != row.decision {
			t.Fatalf("%s says %q, decided is %q: %v", row.where, row.decision, says[d], cellAt(n))
		}
	}
	t.Logf("%d rows, %d cells", len(rows), len(covered))
}

func readTable(t *testing.T, name string) []tableRow {
	t.Helper()
	path := filepath.Join("testdata", "decide", name+".txt")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows []tableRow
	base, columns := wholeSpace(), []int(nil)
	for i, line := range strings.Split(string(raw), "\n") {
		where := fmt.Sprintf("%s:%d", path, i+1)
		left, decision, isRow := strings.Cut(line, " -> ")
		words := strings.Fields(left)
		switch {
		case len(words) == 0, strings.HasPrefix(line, "#"), strings.HasPrefix(line, "---"):
		case strings.HasPrefix(line, "every row: "):
			for _, pair := range words[2:] {
				dim, values, _ := strings.Cut(pair, "=")
				d := dimensionOf(t, where, dim)
				base[d] = valuesOf(t, where, d, values)
			}
		case isRow && columns == nil:
			for _, dim := range words {
				columns = append(columns, dimensionOf(t, where, dim))
			}
		case isRow && len(words) == len(columns):
			row := tableRow{where, base, strings.TrimSpace(decision)}
			for k, w := range words {
				row.block[columns[k]] = valuesOf(t, where, columns[k], w)
			}
			rows = append(rows, row)
		default:
			t.Fatalf("%s: not a row: %q", where, line)
		}
	}
	return rows
}

func dimensionOf(t *testing.T, where, name string) int {
	t.Helper()
	for d := range space {
		if space[d].name == name {
			return d
		}
	}
	t.Fatalf("%s: no dimension is named %q", where, name)
	return 0
}

func valuesOf(t *testing.T, where string, d int, words string) (set uint16) {
	t.Helper()
	all := wholeSpace()[d]
	if words == "*" {
		return all
	}
	if rest, but := strings.CutPrefix(words, "!"); but {
		return all &^ valuesOf(t, where, d, rest)
	}
	for word := range strings.SplitSeq(words, "|") {
		i := slices.Index(space[d].values, word)
		if i < 0 || set&(1<<i) != 0 {
			t.Fatalf("%s: %q is no value of %s, or stands there twice", where, word, space[d].name)
		}
		set |= 1 << i
	}
	return set
}

// gate is a question that settles the cells it speaks of, whatever else they
// are: the block within these values, in the dimensions it names.
type gate map[int][]string

// gates are asked first, in the order of Decide.
var gates = []gate{
	{dimState: {"dispatching", "done"}},
	{dimTime: {"-86401", "restored"}},
	{dimTime: {"+301"}},
	{dimStanding: {"no"}},
	{dimPhase: {"missing"}},
}

// actionGates are asked of each action.
var actionGates = []gate{
	{dimState: {"received"}, dimBasedOn: {"exact_older", "exact_turn", "exact_newer"}},
	{dimArchived: {"yes"}},
}

// order is the one in which the rest is asked, each where anything hangs on it.
var order = []int{dimPhase, dimState, dimBasedOn, dimNewer, dimQuestion, dimEmulate, dimEngine, dimAhead, dimLease, dimArchived}

// recordTable writes the table as Decide is now: it asks one question after the
// other until all cells of a block are decided alike. The blocks of one
// question are disjoint and lose nothing, and the test counts them anyway.
func recordTable(t *testing.T) {
	decided := decideAll()
	rest, first := askGates(t, decided, []block{wholeSpace()}, gates)
	files := map[string][]tableRow{"first": first}
	for i, action := range space[dimAction].values {
		var mine []block
		for _, b := range rest {
			b[dimAction] = 1 << i
			mine = append(mine, b)
		}
		name := action
		if i == len(tableFiles)-1 {
			name = "first" // an action that is none
		}
		left, rows := askGates(t, decided, mine, actionGates)
		files[name] = append(files[name], rows...)
		for _, b := range left {
			files[name] = append(files[name], ask(decided, b, order)...)
		}
	}
	for _, name := range tableFiles {
		path := filepath.Join("testdata", "decide", name+".txt")
		if err := os.WriteFile(path, writeTable(name, files[name]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// askGates takes the blocks that gates settle out of from, as rows.
func askGates(t *testing.T, decided []Decision, from []block, gates []gate) (rest []block, rows []tableRow) {
	rest = from
	for _, g := range gates {
		var left []block
		for _, b := range rest {
			inside, outside := b, []block(nil)
			for _, d := range []int{dimState, dimTime, dimStanding, dimPhase, dimBasedOn, dimArchived} {
				if values, asked := g[d]; asked {
					set := valuesOf(t, "gates", d, strings.Join(values, "|"))
					out := inside
					inside[d] &= set
					if out[d] &^= set; out[d] != 0 {
						outside = append([]block{out}, outside...) // the nearest first
					}
				}
			}
			if d, same := uniform(decided, inside); same {
				rows = append(rows, tableRow{block: inside, decision: d.String()})
				left = append(left, outside...)
			} else {
				left = append(left, b)
			}
		}
		rest = left
	}
	return rest, rows
}

// ask parts b by one dimension after the other.
func ask(decided []Decision, b block, by []int) (rows []tableRow) {
	if d, same := uniform(decided, b); same {
		return []tableRow{{block: b, decision: d.String()}}
	}
	var parts []block
	var seen [][]Decision
	for i := range space[by[0]].values {
		one := b
		if one[by[0]] &= 1 << i; one[by[0]] == 0 {
			continue
		}
		var all []Decision
		one.each(func(n int) bool { all = append(all, decided[n]); return true })
		if at := slices.IndexFunc(seen, func(s []Decision) bool { return slices.Equal(s, all) }); at >= 0 {
			parts[at][by[0]] |= 1 << i
		} else {
			seen, parts = append(seen, all), append(parts, one)
		}
	}
	for _, part := range parts {
		rows = append(rows, ask(decided, part, by[1:])...)
	}
	return rows
}

// uniform says whether all cells of b are decided alike; none are.
func uniform(decided []Decision, b block) (d Decision, same bool) {
	found := false
	same = true
	b.each(func(n int) bool {
		if !found {
			d, found = decided[n], true
		}
		same = decided[n] == d
		return same
	})
	return d, found && same
}

func writeTable(name string, rows []tableRow) []byte {
	var b bytes.Buffer
	if name == "first" {
		fmt.Fprintln(&b, "# What is asked before the action, the same for all of them; the rows stand in the order of the questions.")
	} else {
		fmt.Fprintf(&b, "# Decisions over %s, of what first.txt leaves over.\n", name)
	}
	fmt.Fprintln(&b, "# * is every value, a|b either of two, !a|b all but these. What has no column and is not fixed for every row changes nothing.")
	every := ""
	var columns []int
	for d := range space {
		same := true
		for _, r := range rows {
			same = same && r.block[d] == rows[0].block[d]
		}
		switch {
		case !same:
			columns = append(columns, d)
		case rows[0].block[d] != wholeSpace()[d]:
			every += " " + space[d].name + "=" + wordsOf(d, rows[0].block[d])
		}
	}
	if every != "" {
		fmt.Fprintf(&b, "every row:%s\n", every)
	}
	fmt.Fprintln(&b)
	lines := [][]string{nil}
	for _, d := range columns {
		lines[0] = append(lines[0], space[d].name)
	}
	for _, r := range rows {
		var line []string
		for _, d := range columns {
			line = append(line, wordsOf(d, r.block[d]))
		}
		lines = append(lines, line)
	}
	width := make([]int, len(columns))
	for _, line := range lines {
		for i, w := range line {
			width[i] = max(width[i], len(w))
		}
	}
	for n, line := range lines {
		for i, w := range line {
			fmt.Fprintf(&b, "%-*s  ", width[i], w)
		}
		if n == 0 {
			fmt.Fprintf(&b, "-> decision\n")
		} else {
			fmt.Fprintf(&b, "-> %s\n", rows[n-1].decision)
		}
	}
	return b.Bytes()
}

func wordsOf(d int, set uint16) string {
	all := wholeSpace()[d]
	if set == all {
		return "*"
	}
	if rest := all &^ set; bits.OnesCount16(rest) < bits.OnesCount16(set) {
		return "!" + wordsOf(d, rest)
	}
	var words []string
	for i, v := range space[d].values {
		if set&(1<<i) != 0 {
			words = append(words, v)
		}
	}
	return strings.Join(words, "|")
}
