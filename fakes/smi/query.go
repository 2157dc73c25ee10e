package smi

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"strings"
)

// item is one line of -q, or a section of lines: the same tree is printed as text and as XML. One without a label is in XML alone, and
// text has its children in its place; with a value and children, text has the value. xml, where it is set, is the value in XML. deeper
// indents the line in text once more.
type item struct {
	label, tag, value, xml string
	children               []item
	deeper                 bool
}

func line(label, tag string, value any) item {
	return item{label: label, tag: tag, value: fmt.Sprint(value)}
}

func section(label, tag string, children ...item) item {
	return item{label: label, tag: tag, children: children}
}

// orNA returns "N/A" when the value is not supported.
func orNA(supported bool, v any) any {
	if !supported {
		return "N/A"
	}
	return v
}

func mebibytes(v uint64) string { return fmt.Sprintf("%d MiB", v>>20) }

func (c *Command) query(gpus []gpu, asXML bool) error {
	head := []item{
		line("Timestamp", "timestamp", c.Now.Format("Mon Jan _2 15:04:05 2006")),
		line("Driver Version", "driver_version", c.driver()),
		line("CUDA Version", "cuda_version", c.cuda()),
	}
	attached := line("Attached GPUs", "attached_gpus", len(gpus))
	var b strings.Builder
	if asXML {
		b.WriteString("<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v13.dtd\">\n<nvidia_smi_log>\n")
		for _, i := range append(head, attached) {
			i.writeXML(&b, 1)
		}
		for _, g := range gpus {
			fmt.Fprintf(&b, "\t<gpu id=\"%s\">\n", g.busID())
			for _, i := range c.describe(g) {
				i.writeXML(&b, 2)
			}
			b.WriteString("\t</gpu>\n")
		}
		b.WriteString("</nvidia_smi_log>\n")
		return c.print("%s", b.String())
	}
	b.WriteString("\n==============NVSMI LOG==============\n\n")
	for _, i := range head {
		i.writeText(&b, 0)
	}
	b.WriteString("\n")
	attached.writeText(&b, 0)
	for _, g := range gpus {
		fmt.Fprintf(&b, "GPU %s\n", g.busID())
		for _, i := range c.describe(g) {
			i.writeText(&b, 1)
		}
		b.WriteString("\n")
	}
	return c.print("%s", b.String())
}

func (i item) writeText(b *strings.Builder, depth int) {
	if i.deeper {
		depth++
	}
	indent := strings.Repeat("    ", depth)
	if i.label == "" {
		for _, child := range i.children {
			child.writeText(b, depth)
		}
		return
	}
	if i.children == nil || i.value != "" {
		fmt.Fprintf(b, "%s%-*s : %s\n", indent, 54-4*depth, i.label, i.value)
		return
	}
	fmt.Fprintf(b, "%s%s\n", indent, i.label)
	for _, child := range i.children {
		child.writeText(b, depth+1)
	}
}

func (i item) writeXML(b *strings.Builder, depth int) {
	indent := strings.Repeat("\t", depth)
	if i.children == nil {
		fmt.Fprintf(b, "%s<%s>", indent, i.tag)
		_ = xml.EscapeText(b, []byte(strings.TrimSpace(cmp.Or(i.xml, i.value)))) // a strings.Builder takes everything
		fmt.Fprintf(b, "</%s>\n", i.tag)
		return
	}
	fmt.Fprintf(b, "%s<%s>\n", indent, i.tag)
	for _, child := range i.children {
		child.writeXML(b, depth+1)
	}
	fmt.Fprintf(b, "%s</%s>\n", indent, i.tag)
}
