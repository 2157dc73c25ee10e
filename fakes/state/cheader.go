package state

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"
)

// CHeader writes the layout as a C header, with assertions that the C compiler agrees on every size and offset.
func CHeader(w io.Writer) error {
	var b strings.Builder
	b.WriteString("/* Generated from gpufabric.io/fakes/state; do not edit. */\n#pragma once\n#include <stddef.h>\n#include <stdint.h>\n\n")
	fmt.Fprintf(&b, "#define FF_MAGIC %q\n#define FF_VERSION %d\n#define FF_NONE 0x%xu\n", Magic, Version, uint32(None))
	for _, c := range []struct {
		name  string
		value int
	}{
		{"MAX_GPUS", MaxGPUs}, {"MAX_MIG_PROFILES", MaxMIGProfiles}, {"MAX_PLACEMENTS", MaxPlacements},
		{"MAX_CI_PROFILES", MaxCIProfiles}, {"MAX_GPU_INSTANCES", MaxGPUInstances},
		{"MAX_COMPUTE_INSTANCES", MaxComputeInstances}, {"MAX_LINKS", MaxLinks}, {"MAX_PROCESSES", MaxProcesses},
		{"MAX_DELAYS", MaxDelays}, {"EVENT_RING", EventRing}, {"CPU_WORDS", CPUWords}, {"MEMORY_WORDS", MemoryWords},
		{"MAX_MEMORY_LIMITS", MaxMemoryLimits}, {"MAX_CGROUPS", MaxCgroups},
	} {
		fmt.Fprintf(&b, "#define FF_%s %d\n", c.name, c.value)
	}
	done := map[reflect.Type]bool{}
	writeStruct(&b, reflect.TypeFor[Header](), done)
	writeStruct(&b, reflect.TypeFor[Node](), done)
	writeStruct(&b, reflect.TypeFor[GPU](), done)
	_, err := io.WriteString(w, b.String())
	return err
}

func writeStruct(b *strings.Builder, t reflect.Type, done map[reflect.Type]bool) {
	if done[t] {
		return
	}
	done[t] = true
	for i := range t.NumField() {
		e := t.Field(i).Type
		for e.Kind() == reflect.Array {
			e = e.Elem()
		}
		if e.Kind() == reflect.Struct {
			writeStruct(b, e, done)
		}
	}
	name := cStruct(t)
	fmt.Fprintf(b, "\n%s {\n", name)
	for i := range t.NumField() {
		fmt.Fprintf(b, "\t%s;\n", cDeclaration(t.Field(i).Type, snake(t.Field(i).Name)))
	}
	fmt.Fprintf(b, "};\n_Static_assert(sizeof(%s) == %d, \"size of %s\");\n", name, t.Size(), t.Name())
	for i := range t.NumField() {
		f := t.Field(i)
		fmt.Fprintf(b, "_Static_assert(offsetof(%s, %s) == %d, \"offset of %s.%s\");\n", name, snake(f.Name), f.Offset, t.Name(), f.Name)
	}
}

func cStruct(t reflect.Type) string { return "struct ff_" + snake(t.Name()) }

func cDeclaration(t reflect.Type, name string) string {
	switch t.Kind() {
	case reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 && !strings.HasPrefix(name, "uuid") && name != "topology" && name != "p2p" &&
			name != "fabric_cluster" {
			return fmt.Sprintf("char %s[%d]", name, t.Len())
		}
		return cDeclaration(t.Elem(), fmt.Sprintf("%s[%d]", name, t.Len()))
	case reflect.Struct:
		return cStruct(t) + " " + name
	default:
		return t.Kind().String() + "_t " + name
	}
}

// snake turns GPUCount into gpu_count and PCIeWidth into pcie_width.
func snake(s string) string {
	s = strings.NewReplacer("PCIe", "Pcie", "ROMOEM", "RomOem", "ROMECC", "RomEcc", "GPUs", "Gpus", "CPUs", "Cpus",
		"P2P", "P2p", "MiB", "Mib").Replace(s)
	var b strings.Builder
	rs := []rune(s)
	for i, r := range rs {
		if i > 0 && unicode.IsUpper(r) && (!unicode.IsUpper(rs[i-1]) || i+1 < len(rs) && unicode.IsLower(rs[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
