package nvmlstate

import (
	"reflect"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// unsupported fills every function of one of go-nvml's mock structs: one that takes a handle first and is named after the handle's kind
// (DeviceGetName) is passed on to the handle's own method (GetName), and any other returns NOT_SUPPORTED with zero values.
// Methods of the type that embeds the mock go before both.
func unsupported[T any](mock *T) *T {
	v := reflect.ValueOf(mock).Elem()
	for i := range v.NumField() {
		name, isFunc := strings.CutSuffix(v.Type().Field(i).Name, "Func")
		if f := v.Field(i); isFunc && f.Kind() == reflect.Func {
			f.Set(reflect.MakeFunc(f.Type(), answer(name, f.Type())))
		}
	}
	return mock
}

var handleKinds = []string{"Device", "GpuInstance", "ComputeInstance", "EventSet", "Gpm"}

func answer(name string, t reflect.Type) func([]reflect.Value) []reflect.Value {
	for _, kind := range handleKinds {
		method, ok := strings.CutPrefix(name, kind)
		if !ok || t.NumIn() == 0 || t.In(0).Kind() != reflect.Interface {
			continue
		}
		if _, ok := t.In(0).MethodByName(method); ok {
			return func(args []reflect.Value) []reflect.Value {
				if args[0].IsNil() {
					return failed(t, nvml.ERROR_INVALID_ARGUMENT)
				}
				return args[0].MethodByName(method).Call(args[1:])
			}
		}
	}
	return func([]reflect.Value) []reflect.Value { return failed(t, nvml.ERROR_NOT_SUPPORTED) }
}

var returnType = reflect.TypeFor[nvml.Return]()

// failed gives zero values with the return code where the function has one.
func failed(t reflect.Type, code nvml.Return) []reflect.Value {
	out := make([]reflect.Value, t.NumOut())
	for i := range out {
		out[i] = reflect.Zero(t.Out(i))
		if t.Out(i) == returnType && i == len(out)-1 {
			out[i] = reflect.ValueOf(code)
		}
	}
	return out
}
