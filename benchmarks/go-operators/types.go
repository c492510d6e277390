package main

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A Thing has any spec, which is not parsed.
type Thing struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              json.RawMessage            `json:"spec,omitempty"`
	Status            map[string]json.RawMessage `json:"status,omitempty"`
}

type ThingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Thing `json:"items"`
}

func (in *Thing) DeepCopy() *Thing {
	out := *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec = append(json.RawMessage(nil), in.Spec...)
	if in.Status != nil {
		out.Status = make(map[string]json.RawMessage, len(in.Status))
		for key, value := range in.Status {
			out.Status[key] = append(json.RawMessage(nil), value...)
		}
	}
	return &out
}

func (in *Thing) DeepCopyObject() runtime.Object { return in.DeepCopy() }

func (in *ThingList) DeepCopyObject() runtime.Object {
	out := *in
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Thing, len(in.Items))
	for i := range in.Items {
		out.Items[i] = *in.Items[i].DeepCopy()
	}
	return &out
}
