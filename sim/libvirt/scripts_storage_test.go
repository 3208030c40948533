package libvirt_test

import (
	"slices"
	"time"

	"libvirt.org/go/libvirtxml"
)

func sorted(names []string) []string { return slices.Sorted(slices.Values(names)) }

// volumes writes down the names of a pool's volumes.
func (s *scene) volumes(p pool) {
	names, err := p.ListStorageVolumes()
	s.say("volumes", err, sorted(names))
}

func scriptPools(s *scene) {
	p := made[pool](s, "define")(s.c.StoragePoolDefineXML(poolXML("images"), 0))
	got[bool](s, "active")(p.IsActive())
	got[bool](s, "persistent")(p.IsPersistent())
	got[bool](s, "autostart")(p.GetAutostart())

	info, err := p.GetInfo()
	s.say("info", err, info.State, info.Capacity)
	s.say("refresh while off", p.Refresh(0))
	made[volume](s, "look up a volume while off")(p.Volume("x"))
	_, err = p.ListStorageVolumes()
	s.say("list volumes while off", err)
	_, err = p.CreateVolume(volumeXML("x", "raw", 1))
	s.say("create a volume while off", err)
	s.say("destroy while off", p.Destroy())
	s.say("build", p.Build(0))
	s.say("create", p.Create(0))
	s.say("create again", p.Create(0))
	s.say("set autostart", p.SetAutostart(true))
	got[bool](s, "autostart")(p.GetAutostart())

	info, err = p.GetInfo()
	s.say("info", err, info.State, info.Capacity > 0, info.Capacity == info.Allocation+info.Available)

	text, err := p.GetXMLDesc(0)
	doc := read[libvirtxml.StoragePool](s, text, err)
	s.say("description", err, doc.Type, doc.Name, doc.Target.Path, doc.Capacity.Unit, doc.Capacity.Value == info.Capacity)
	made[pool](s, "define the active pool anew")(s.c.StoragePoolDefineXML(poolXML("images"), 0))
	made[pool](s, "define the same name with another UUID")(s.c.StoragePoolDefineXML(
		"<pool type='dir'><name>images</name><uuid>"+uuid1+"</uuid><target><path>/var/lib/libvirt/images</path></target></pool>", 0))
	id, err := p.GetUUIDString()
	s.say("UUID", err)
	made[pool](s, "define the active pool with its UUID")(s.c.StoragePoolDefineXML(
		"<pool type='dir'><name>images</name><uuid>"+id+"</uuid><target><path>/var/lib/libvirt/images</path></target></pool>", 0))
	made[pool](s, "define its UUID with another name")(s.c.StoragePoolDefineXML(
		"<pool type='dir'><name>b</name><uuid>"+id+"</uuid><target><path>/var/lib/libvirt/other</path></target></pool>", 0))
	made[pool](s, "define the same target with another name")(s.c.StoragePoolDefineXML(
		"<pool type='dir'><name>b</name><target><path>/var/lib/libvirt/images</path></target></pool>", 0))
	made[pool](s, "define without target")(s.c.StoragePoolDefineXML("<pool type='dir'><name>b</name></pool>", 0))
	made[pool](s, "define without name")(s.c.StoragePoolDefineXML("<pool type='dir'><target><path>/x</path></target></pool>", 0))
	made[pool](s, "define another type")(s.c.StoragePoolDefineXML("<pool type='bogus'><name>b</name></pool>", 0))
	made[pool](s, "look up")(s.c.LookupStoragePoolByName("images"))
	made[pool](s, "look up another one")(s.c.LookupStoragePoolByName("none"))
	made[pool](s, "look up by UUID")(s.c.LookupStoragePoolByUUIDString(uuid2))
	made[pool](s, "look up by target")(s.c.LookupStoragePoolByTargetPath("/var/lib/libvirt/images"))
	made[pool](s, "look up by another target")(s.c.LookupStoragePoolByTargetPath("/var/lib/libvirt/none"))
	s.say("undefine while active", p.Undefine())
	s.say("delete while active", p.Delete(0))
	made[volume](s, "volume")(p.CreateVolume(volumeXML("x", "raw", 1)))
	s.say("destroy", p.Destroy())
	s.say("delete with a volume", p.Delete(0))
	s.say("create", p.Create(0))
	s.volumes(p)
	s.say("destroy", p.Destroy())
	s.say("undefine", p.Undefine())
	s.say("undefine again", p.Undefine())
}

func scriptStalePool(s *scene) {
	p := s.newPool("images")
	v := made[volume](s, "volume")(p.CreateVolume(volumeXML("x", "raw", 1)))
	s.say("destroy", p.Destroy())
	_, err := v.GetInfo()
	s.say("volume of an inactive pool", err)
	s.say("undefine", p.Undefine())
	_, err = p.IsActive()
	s.say("active", err)
	_, err = p.GetInfo()
	s.say("info", err)
	s.say("create", p.Create(0))
	s.say("refresh", p.Refresh(0))
	_, err = p.Volume("x")
	s.say("look up", err)
	_, err = v.GetInfo()
	s.say("volume of a pool that has gone", err)
	s.say("delete", v.Delete(0))
	got[string](s, "name of the volume")(v.GetName())
}

// volumeInfo writes down what is known of a volume.
func (s *scene) volumeInfo(v volume) {
	info, err := v.GetInfo()
	if err != nil {
		s.say("info", err)
	} else {
		s.say("info", nil, info.Type, info.Capacity)
	}

	text, err := v.GetXMLDesc(0)
	if err != nil {
		s.say("description", err)

		return
	}

	doc := read[libvirtxml.StorageVolume](s, text, err)
	backing := ""

	if doc.BackingStore != nil {
		backing = " on " + doc.BackingStore.Path + " " + doc.BackingStore.Format.Type
	}

	s.say("description", nil, doc.Type, doc.Name, doc.Key, doc.Capacity.Value, doc.Capacity.Unit, doc.Target.Path, doc.Target.Format.Type,
		doc.Target.Permissions.Mode+backing)
}

func scriptVolumes(s *scene) {
	p := s.newPool("images")
	a := made[volume](s, "create")(p.CreateVolume(volumeXML("a.raw", "raw", 1<<20)))
	s.volumeInfo(a)
	info, err := a.GetInfo()
	s.say("it takes no space", err, info.Allocation)
	got[string](s, "path")(a.GetPath())
	got[string](s, "key")(a.GetKey())
	s.volumeInfo(made[volume](s, "create qcow2")(p.CreateVolume(volumeXML("b.qcow2", "qcow2", 1<<30))))
	made[volume](s, "create again")(p.CreateVolume(volumeXML("a.raw", "raw", 1<<20)))
	s.volumes(p)
	got[int](s, "number")(p.NumOfStorageVolumes())
	made[volume](s, "look up")(p.Volume("a.raw"))
	made[volume](s, "look up another one")(p.Volume("none"))
	made[volume](s, "look up by path")(s.c.LookupStorageVolByPath(images + "a.raw"))
	made[volume](s, "look up by another path")(s.c.LookupStorageVolByPath(images + "none"))
	made[volume](s, "look up by key")(s.c.LookupStorageVolByKey(images + "none"))
	s.volumeInfo(made[volume](s, "with units and mode")(p.CreateVolume(
		"<volume><name>c</name><capacity unit='MiB'>3</capacity><target><format type='raw'/><permissions><mode>0644</mode></permissions></target></volume>")))
	c, err := p.Volume("c")
	s.say("look up", err)
	info, err = c.GetInfo()
	s.say("all its space is taken", err, info.Allocation >= info.Capacity)
	s.volumeInfo(made[volume](s, "of one byte")(p.CreateVolume(volumeXML("d", "raw", 1))))
	s.volumeInfo(made[volume](s, "of no byte")(p.CreateVolume(volumeXML("e", "raw", 0))))
	s.volumeInfo(made[volume](s, "qcow2 of one byte")(p.CreateVolume(volumeXML("f", "qcow2", 1))))
	s.volumeInfo(made[volume](s, "without format")(p.CreateVolume("<volume><name>g</name><capacity>512</capacity></volume>")))
	s.say("delete", a.Delete(0))
	s.say("delete again", a.Delete(0))
	_, err = a.GetInfo()
	s.say("info of what has gone", err)
	got[string](s, "name of what has gone")(a.GetName())
	s.say("file", nil, s.HasFile(images+"a.raw"))
	s.volumes(p)
}

func scriptVolumesRefused(s *scene) {
	p := s.newPool("images")
	try := func(what, xml string) {
		_, err := p.CreateVolume(xml)
		s.say(what, err)
	}

	_, err := p.CreateVolume("<volume")
	s.number("no XML", err)
	_, err = p.CreateVolume("<other/>")
	s.number("another document", err)
	try("no name", "<volume><capacity>1</capacity></volume>")
	try("no capacity", "<volume><name>a</name></volume>")
	try("slash in name", volumeXML("a/b", "raw", 1))
	try("unknown format", volumeXML("a", "bogus", 1))
	try("unknown unit", "<volume><name>a</name><capacity unit='XiB'>1</capacity></volume>")
	s.number("more than there is", func() error {
		_, err := p.CreateVolume("<volume><name>a</name><capacity unit='EiB'>4</capacity></volume>")

		return err
	}())
	s.volumes(p)
}

func scriptOverlays(s *scene) {
	p := s.newPool("images")
	base := made[volume](s, "base")(p.CreateVolume(volumeXML("base.raw", "raw", 1<<20)))
	s.volumeInfo(made[volume](s, "overlay")(p.CreateVolume(volumeXML("a.qcow2", "qcow2", 2<<20, backingXML(images+"base.raw", "raw")))))
	s.volumeInfo(made[volume](s, "overlay of the overlay")(p.CreateVolume(volumeXML("b.qcow2", "qcow2", 2<<20, backingXML(images+"a.qcow2", "qcow2")))))
	s.volumeInfo(made[volume](s, "smaller overlay")(p.CreateVolume(volumeXML("c.qcow2", "qcow2", 512, backingXML(images+"base.raw", "raw")))))
	_, err := p.CreateVolume(volumeXML("d.qcow2", "qcow2", 2<<20, backingXML(images+"none.raw", "raw")))
	s.say("overlay of what is not there", err)
	_, err = p.CreateVolume(volumeXML("d.raw", "raw", 2<<20, backingXML(images+"base.raw", "raw")))
	s.say("raw overlay", err)
	_, err = p.CreateVolume("<volume><name>e.qcow2</name><target><format type='qcow2'/></target>" + backingXML(images+"base.raw", "raw") + "</volume>")
	s.say("overlay without capacity", err)
	_, err = p.CreateVolume("<volume><name>f.qcow2</name><capacity>1048576</capacity><target><format type='qcow2'/></target><backingStore><path>" +
		images + "base.raw</path></backingStore></volume>")
	s.say("overlay without format", err)
	s.say("delete base", base.Delete(0))

	a, err := p.Volume("a.qcow2")
	s.say("look up", err)
	s.volumeInfo(a)
	s.say("refresh", p.Refresh(0))
	s.volumeInfo(a)
	s.volumes(p)
}

func scriptHiddenFiles(s *scene) {
	p := s.newPool("images")
	s.WriteFile(images+"hidden.raw", make([]byte, 1024))
	s.WriteFile(images+"hidden.qcow2", qcow2(1<<20, ""))
	s.volumes(p)
	made[volume](s, "look up")(p.Volume("hidden.raw"))
	_, err := p.CreateVolume(volumeXML("hidden.raw", "raw", 1))
	s.say("create in its place", err)
	_, err = p.CreateVolume(volumeXML("hidden.qcow2", "qcow2", 1))
	s.say("create qcow2 in its place", err)
	s.say("refresh", p.Refresh(0))
	s.volumes(p)

	raw, err := p.Volume("hidden.raw")
	s.say("look up", err)
	s.volumeInfo(raw)

	image, err := p.Volume("hidden.qcow2")
	s.say("look up", err)
	s.volumeInfo(image)
	s.RemoveFile(images + "hidden.raw")
	_, err = raw.GetInfo()
	s.say("info of what was deleted", err)
	_, err = raw.GetXMLDesc(0)
	s.say("description of what was deleted", err)
	got[string](s, "path of what was deleted")(raw.GetPath())

	st := made[stream](s, "stream")(s.c.NewStream())
	s.number("upload to what was deleted", raw.StartUpload(st, 0, 0, 0))
	s.say("resize what was deleted", raw.Resize(4096, 0))
	s.say("delete what was deleted", raw.Delete(0))
	s.say("delete it again", raw.Delete(0))
	s.RemoveFile(images + "hidden.qcow2")
	s.say("refresh", p.Refresh(0))
	s.volumes(p)
}

// What is said while a volume is copied.
func scriptBusyPool(s *scene) {
	p := s.newPool("images")
	v := made[volume](s, "create")(p.CreateVolume("<volume><name>a.raw</name><capacity unit='MiB'>64</capacity><allocation>0</allocation></volume>"))
	done := make(chan error, 1)
	release := s.HoldCopies()

	go func() {
		_, err := p.CloneVolume(
			"<volume><name>b.qcow2</name><capacity unit='MiB'>64</capacity><target><format type='qcow2'/></target></volume>", v)
		done <- err
	}()

	var (
		copying volume
		err     error
	)

	for range 1000 {
		if copying, err = p.Volume("b.qcow2"); err == nil {
			break
		}

		time.Sleep(2 * time.Millisecond)
	}

	st, streamErr := s.c.NewStream()
	answers := []struct {
		step string
		err  error
	}{
		{"look up the copy", err},
		{"refresh", p.Refresh(0)},
		{"destroy", p.Destroy()},
		{"delete the source", v.Delete(0)},
		{"delete the copy", copying.Delete(0)},
		{"stream", streamErr},
		{"upload to the source", v.StartUpload(st, 0, 0, 0)},
		{"upload to the copy", copying.StartUpload(st, 0, 0, 0)},
		{"resize the source", v.Resize(32<<30, 0)},
		{"resize the copy", copying.Resize(32<<30, 0)},
	}

	release()

	for _, a := range answers {
		s.say(a.step, a.err)
	}

	s.say("copy", <-done)
	s.say("refresh", p.Refresh(0))
	s.volumes(p)
	s.say("delete", v.Delete(0))
}
