package classdata_test

import (
	"fmt"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
)

type vm struct {
	Cores  int    `json:"cores" title:"CPU cores" doc:"Number of virtual CPUs." default:"2" min:"1" max:"64"`
	Memory int    `json:"memory" title:"Memory" doc:"Memory in MiB." required:"true" min:"2048"`
	Bus    string `json:"bus" doc:"Bus of the system disk." enum:"virtio,sata" default:"virtio"`
}

func ExampleDecode() {
	machine, err := classdata.Decode[vm]("memory: 4096")
	fmt.Printf("%+v %v\n", machine, err)

	_, err = classdata.Decode[vm]("memroy: 4096\nbus: ide")
	fmt.Println(err)
	// Output:
	// {Cores:2 Memory:4096 Bus:virtio} <nil>
	// invalid class data: memory: required, but not given; want a whole number of at least 2048; memroy: unknown field; did you mean "memory"? (line 1); bus: got the text "ide", want one of virtio, sata (line 2)
}

func ExampleDecodeAs() {
	_, err := classdata.DecodeAs[vm]("configuration", "memory: 1")
	fmt.Println(err)
	// Output:
	// invalid configuration: memory: got the number 1, want a whole number of at least 2048 (line 1)
}

func ExampleSchema() {
	fmt.Print(classdata.Schema[struct {
		Memory int `json:"memory" title:"Memory" doc:"Memory in MiB." required:"true" min:"2048"`
	}]("Machine"))
	// Output:
	// {
	//   "title": "Machine",
	//   "type": "object",
	//   "properties": {
	//     "memory": {
	//       "title": "Memory",
	//       "description": "Memory in MiB.",
	//       "type": "integer",
	//       "minimum": 2048
	//     }
	//   },
	//   "required": [
	//     "memory"
	//   ],
	//   "additionalProperties": false
	// }
}
