package cards

import (
	"strings"
	"testing"

	"gpufabric.io/drivers/vgpu/annotation"
)

// a100 is an idle A100-40 in units of 1 MiB, in one of two layouts: seven 1g.5gb, or three 2g.10gb and a 1g.5gb. The sizes are the
// driver's.
func a100(given ...string) Card {
	c := Card{GPU: annotation.GPU{UUID: uuid(0), Slots: 7, Memory: 40960, Model: "A100-SXM4-40GB", Healthy: true, Mode: annotation.ModeMIG},
		Groups: [][]int64{{4864, 4864, 4864, 4864, 4864, 4864, 4864}, {9856, 9856, 9856, 4864}}}
	n := Node{c}
	for _, slot := range given {
		lists, err := annotation.ParseShares(uuid(0) + slot + ",NVIDIA,4864,0:;")
		if err != nil {
			panic(err) // a mistake in this file
		}
		n.Book(lists, nil)
	}
	return n[0]
}

func TestMIGSlots(t *testing.T) {
	mig := map[string]string{"volcano.sh/vgpu-mode": "mig"}
	one := func(memory int64) [][3]int64 { return [][3]int64{{1, memory, -1}} }
	silent := a100()
	silent.Groups = nil
	for _, test := range []struct {
		name  string
		card  Card
		asks  [][3]int64
		slots string // "[group-position],memory" of each container
		wrong string
	}{
		{"the seed's 3000 MB are a 1g.5gb", a100(), one(3000), "[0-0],4864", ""},
		{"exactly an instance's memory", a100(), one(4864), "[0-0],4864", ""},
		{"one more is the next larger", a100(), one(4865), "[1-0],9856", ""},
		{"the second slot of the layout", a100("[0-0]"), one(3000), "[0-1],4864", ""},
		{"a slot that was given back", a100("[0-0]", "[0-2]"), one(3000), "[0-1],4864", ""},
		{"the smallest of a layout that stands", a100("[1-0]"), one(3000), "[1-3],4864", ""},
		{"a larger one of it where the smallest is taken", a100("[1-3]"), one(3000), "[1-0],9856", ""},
		{"two containers have a slot each", a100(), [][3]int64{{1, 3000, -1}, {1, 3000, -1}}, "[0-0],4864 [0-1],4864", ""},
		{"two containers of different sizes in one layout", a100("[1-1]"), [][3]int64{{1, 3000, -1}, {1, 9000, -1}}, "[1-3],4864 [1-0],9856", ""},
		{"no memory named is the largest instance", a100(), one(-1), "[1-0],9856", ""},
		{"a larger one than the layout has that stands", a100("[0-6]"), one(9000), "", "1 without a MIG instance that large left"},
		{"the layout is full", a100("[1-0]", "[1-1]", "[1-2]", "[1-3]"), one(3000), "", "1 without a MIG instance that large left"},
		{"larger than any instance", a100(), one(9857), "", "1 without a MIG instance that large"},
		{"an instance that was given by size", a100(""), one(3000), "", "1 with a MIG instance that another scheduler gave without a slot"},
		{"slots of two layouts", a100("[0-0]", "[1-3]"), one(3000), "", "or in another layout"},
		{"a node that publishes no slots", silent, one(3000), "", "1 whose node publishes no MIG slots"},
	} {
		t.Run(test.name, func(t *testing.T) {
			wish, err := Read(pod(mig, test.asks...), volcano, Policies{Binpack, Binpack})
			if err != nil {
				t.Fatal(err)
			}
			shares, err := Node{test.card}.Place(wish)
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("error %v, want one with %q", err, test.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := ""
			for slot := range strings.FieldsSeq(test.slots) {
				place, memory, _ := strings.Cut(slot, ",")
				want += uuid(0) + place + ",NVIDIA," + memory + ",0:;"
			}
			if got := annotation.FormatShares(shares); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
	if _, err := Read(pod(mig, [3]int64{1, 3000, 30}), volcano, Policies{Binpack, Binpack}); err == nil ||
		!strings.Contains(err.Error(), "volcano.sh/vgpu-cores: 30 of a MIG instance") {
		t.Errorf("cores of an instance: error %v", err)
	}
}
