package nip

import (
	"slices"
	"unicode/utf8"
)

// create holds task.create to its bounds. Whether the workspace is known and the
// pictures arrived is the host's to say.
func (v *validator) create(t TaskCreate) {
	v.text(t.Title, maxTitle, "title")
	v.must(t.Prompt != "" && len(t.Prompt) <= maxPrompt && utf8.ValidString(t.Prompt), Bounds,
		"prompt is empty or too long")
	v.text(string(t.Workspace), maxLabel, "workspace")
	v.must(len(t.Images) <= maxImages, Bounds, "too many images")
	for i, img := range t.Images {
		v.picture(img.Digest, img.MediaType, img.Size)
		v.must(utf8.RuneCountInString(img.Name) <= maxImageName, Bounds, "an image's name is too long")
		v.text(img.Name, 4*maxImageName, "an image's name")
		v.must(!slices.ContainsFunc(t.Images[:i], func(o Image) bool { return o.Digest == img.Digest }),
			Malformed, "an image stands twice")
	}
	v.must(t.Engine == "" || slices.Contains(engines, t.Engine), Malformed, "engine is not known")
}

// createMembers leaves out images and engine where there are none; the wire
// never has them as null.
func createMembers(t TaskCreate) members {
	m := members{"title": t.Title, "prompt": t.Prompt, "workspace": t.Workspace}
	if len(t.Images) > 0 {
		var images []members
		for _, i := range t.Images {
			images = append(images, members{
				"digest": i.Digest, "media_type": i.MediaType, "size": i.Size, "name": i.Name,
			})
		}
		m["images"] = images
	}
	if t.Engine != "" {
		m["engine"] = t.Engine
	}
	return m
}
