package fabric

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// MIGProfile is a parsed name of a MIG profile: 1g.5gb, 1g.10gb+me, 1c.3g.40gb.
type MIGProfile struct {
	GPUSlices     int      // compute slices of the GPU instance, 1 to 7
	ComputeSlices int      // of the compute instance; GPUSlices unless the name says otherwise
	MemoryGB      int      // as in the name, which rounds
	Attributes    []string // after the plus: me, me.all, gfx
}

var migName = regexp.MustCompile(`^(?:([1-7])c\.)?([1-7])g\.([1-9][0-9]{0,3})gb(?:\+([a-z.]+(?:,[a-z.]+)*))?$`)

// ParseMIGProfile reads a profile's name. It does not check the profiles of a GPU model.
func ParseMIGProfile(name string) (MIGProfile, error) {
	parts := migName.FindStringSubmatch(name)
	if parts == nil {
		return MIGProfile{}, fmt.Errorf("%q is not a MIG profile: want [Cc.]Gg.Mgb[+attribute], for example 1g.10gb, 1g.10gb+me or 1c.3g.40gb",
			name)
	}
	number := func(s string) int { n, _ := strconv.Atoi(s); return n } // digits by the pattern
	p := MIGProfile{GPUSlices: number(parts[2]), MemoryGB: number(parts[3])}
	p.ComputeSlices = p.GPUSlices
	if parts[1] != "" {
		p.ComputeSlices = number(parts[1])
	}
	if p.ComputeSlices > p.GPUSlices {
		return MIGProfile{}, fmt.Errorf("%q has a compute instance of %d slices in a GPU instance of %d", name, p.ComputeSlices, p.GPUSlices)
	}
	if parts[4] != "" {
		p.Attributes = strings.Split(parts[4], ",")
	}
	return p, nil
}

// placement is where GPU instances of one profile may be: at one of the starts, over size memory slices of the GPU's eight.
type placement struct {
	profile string
	starts  []int
	size    int
	max     int
}

// memory slices of a seven-slice part; a GPU instance takes one or more neighbours.
const memorySlices = 8

// The geometry of GPUs with seven slices (A100 and later data-centre GPUs), with the sizes of each model.
func geometry(m model) []placement {
	one := fmt.Sprintf("1g.%dgb", m.one)
	all := []placement{
		{"7g." + gb(m.seven), []int{0}, 8, 1},
		{"4g." + gb(m.four), []int{0}, 4, 1},
		{"3g." + gb(m.four), []int{0, 4}, 4, 2},
		{"2g." + gb(m.two), []int{0, 2, 4}, 2, 3},
		{"1g." + gb(m.two), []int{0, 2, 4, 6}, 2, 4},
		{one + "+me", []int{0, 1, 2, 3, 4, 5, 6}, 1, 1},
		{one, []int{0, 1, 2, 3, 4, 5, 6}, 1, 7},
	}
	return all
}

func gb(n int) string { return strconv.Itoa(n) + "gb" }

// model holds the sizes in the profile names of one GPU model, in GB: one memory slice, two, four and all.
type model struct {
	name                  string
	one, two, four, seven int
}

// The models, as their drivers name the profiles. Names can differ between driver versions; a node's ResourceSlices list its real profiles.
func models() []model {
	return []model{
		{"A100-40GB", 5, 10, 20, 40}, {"A100-80GB", 10, 20, 40, 80}, {"H100-80GB", 10, 20, 40, 80}, {"H200-141GB", 18, 35, 71, 141},
		{"B200-180GB", 23, 45, 90, 180}, {"GB200-186GB", 23, 47, 93, 186},
	}
}

// MIGModels lists the model names that MIGLayouts supports.
func MIGModels() []string {
	var list []string
	for _, m := range models() {
		list = append(list, m.name)
	}
	return list
}

// MIGLayouts lists every way to fill one GPU of a model to which nothing can be added. Each is a list of profiles from large to
// small; the layouts are sorted. It returns only layouts with all profiles of containing (repeated ones as often). The profiles
// 1g.*gb+me are used only if containing names them, since otherwise each layout with a 1g would appear twice.
func MIGLayouts(name string, containing ...string) ([][]string, error) {
	at := slices.IndexFunc(models(), func(m model) bool { return strings.EqualFold(m.name, name) })
	if at < 0 {
		return nil, fmt.Errorf("%q is not a supported GPU model: want one of %s", name, strings.Join(MIGModels(), ", "))
	}
	shapes := geometry(models()[at])
	for _, wanted := range containing {
		if !slices.ContainsFunc(shapes, func(p placement) bool { return p.profile == wanted }) {
			var names []string
			for _, p := range shapes {
				names = append(names, p.profile)
			}
			return nil, fmt.Errorf("%s has no profile %q: it has %s", models()[at].name, wanted, strings.Join(names, ", "))
		}
	}
	media := slices.ContainsFunc(containing, func(p string) bool { return strings.HasSuffix(p, "+me") })
	if !media {
		shapes = slices.DeleteFunc(shapes, func(p placement) bool { return strings.HasSuffix(p.profile, "+me") })
	}
	f := filler{shapes: shapes, found: map[string][]string{}}
	f.fill(0, 0, make([]int, len(shapes)))
	var layouts [][]string
	for _, layout := range f.found {
		if containsAll(layout, containing) {
			layouts = append(layouts, layout)
		}
	}
	slices.SortFunc(layouts, slices.Compare)
	return layouts, nil
}

// filler walks over all placements of profiles on the eight memory slices.
type filler struct {
	shapes []placement
	found  map[string][]string
}

// fill places instances that start at slice from or later; taken is a bit per slice in use, counts the instances of each shape.
func (f *filler) fill(from int, taken uint, counts []int) {
	for start := from; start < memorySlices; start++ {
		for i, shape := range f.shapes {
			if counts[i] < shape.max && fits(shape, start, taken) {
				counts[i]++
				f.fill(start+1, taken|mask(shape, start), counts)
				counts[i]--
			}
		}
	}
	// Maximal: no shape fits anywhere, also not at earlier starts that were skipped.
	for i, shape := range f.shapes {
		for _, start := range shape.starts {
			if counts[i] < shape.max && fits(shape, start, taken) {
				return
			}
		}
	}
	var layout []string
	for i, n := range counts {
		layout = append(layout, slices.Repeat([]string{f.shapes[i].profile}, n)...)
	}
	f.found[strings.Join(layout, " ")] = layout
}

func fits(p placement, start int, taken uint) bool {
	return slices.Contains(p.starts, start) && taken&mask(p, start) == 0
}

func mask(p placement, start int) uint { return (1<<p.size - 1) << start }

func containsAll(layout, wanted []string) bool {
	rest := slices.Clone(layout)
	for _, w := range wanted {
		at := slices.Index(rest, w)
		if at < 0 {
			return false
		}
		rest = slices.Delete(rest, at, at+1)
	}
	return true
}
