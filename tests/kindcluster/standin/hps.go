package standin

import (
	_ "embed"

	"gpufabric.io/build/images"
)

// training replaces the program that the ACK job starts.
//
//go:embed wdl_8gpu_outbrain.py
var training []byte

// hps puts the job's program over Debian's Python, at the path of the image that the seed names.
func hps() []images.File {
	return []images.File{{Path: "/workspace/wdl_8gpu_outbrain.py", Content: training, Mode: 0o644}}
}
