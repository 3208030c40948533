package oxide

import (
	"net/http"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

type project struct{ meta }

func (p *project) view() api.Project {
	return api.Project{
		Id: p.id, Name: api.Name(p.name), Description: p.description, TimeCreated: took(p.created), TimeModified: took(p.modified),
	}
}

// projectOf returns the project that a text names, if the user may see it; changing says that it must be one that the user may change
// things in.
func (c *call) projectOf(text string, changing bool) (*project, error) {
	p, ok := c.projects.byID(text)
	missing := notFoundID("project", text)

	if !isID(text) {
		if err := checkName(text); err != nil {
			return nil, badQuery(err.(*refusal).message) //nolint:errorlint,forcetypeassert // checkName returns nothing else.
		}

		p, ok = c.projects.named("", text)
		missing = notFoundName("project", text)
	}

	switch {
	case !ok || c.user.in(p.id) < Viewer:
		return nil, missing
	case changing && c.user.in(p.id) < Collaborator:
		return nil, forbidden()
	}

	return p, nil
}

// inProject returns the project of the query, which has to be there.
func (c *call) inProject(changing bool) (*project, error) {
	text := c.query.Get("project")
	if text == "" {
		return nil, badQuery("missing field `project`")
	}

	return c.projectOf(text, changing)
}

// listOf is the page that is asked for and the project that it is of.
func (c *call) listOf() (p paging, in *project, err error) {
	if p, err = c.paging(); err != nil {
		return p, nil, err
	}

	if p.mark.Start.Scope == "" {
		return p, nil, badQuery("missing field `project`")
	}

	in, err = c.projectOf(p.mark.Start.Scope, false)

	return p, in, err
}

// find returns the resource of a project that a text names. It is an id, with which no project may be named, or a name, with which
// one has to be.
func find[T resource](c *call, t *table[T], text string, changing bool) (row T, err error) {
	project := c.query.Get("project")

	switch {
	case isID(text) && project != "":
		return row, invalidRequest("when providing %s as an ID project should not be specified", t.selector())
	case isID(text):
		row, ok := t.byID(text)
		if !ok || c.user.in(row.base().scope) < Viewer {
			return row, notFoundID(t.noun, text)
		}

		if changing && c.user.in(row.base().scope) < Collaborator {
			return row, forbidden()
		}

		return row, nil
	case project == "":
		return row, invalidRequest("%s should either be UUID or project should be specified", t.selector())
	}

	p, err := c.projectOf(project, changing)
	if err != nil {
		return row, err
	}

	if err := checkPath(text); err != nil {
		return row, err
	}

	row, ok := t.named(p.id, text)
	if !ok {
		return row, notFoundName(t.noun, text)
	}

	return row, nil
}

// within returns the resource of a project that a name or id in a body names.
func within[T resource](t *table[T], in *project, text string) (row T, err error) {
	if isID(text) {
		row, ok := t.byID(text)
		if !ok || row.base().scope != in.id {
			return row, notFoundID(t.noun, text)
		}

		return row, nil
	}

	row, ok := t.named(in.id, text)
	if !ok {
		return row, notFoundName(t.noun, text)
	}

	return row, nil
}

// checkPath refuses a name in a path that can be none.
func checkPath(name string) error {
	if err := checkName(name); err != nil {
		return badRequest("bad parameter in URL path: %s", err.(*refusal).message) //nolint:errorlint,forcetypeassert // As above.
	}

	return nil
}

// makeProjectLocked makes a project with its default VPC. The books have neither if the project is there from the start.
func (r *Rack) makeProjectLocked(name, description string, entered bool) (*project, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}

	if err := r.projects.free("", name, ""); err != nil {
		return nil, err
	}

	p := &project{meta: r.newMeta(name, description, "")}
	if entered {
		r.projects.add(r.ledger, p, false)
	} else {
		r.projects.rows = append(r.projects.rows, p)
	}

	r.makeVPCLocked(p, "default", "The default VPC", "default", false)

	return p, nil
}

func (c *call) listProjects() (int, any, error) {
	p, err := c.paging()
	if err != nil {
		return 0, nil, err
	}

	// Who has a role in a project alone sees the project, but not which ones there are.
	if c.user.role < Viewer {
		return 0, nil, forbidden()
	}

	return listed(p, c.projects.rows, (*project).view)
}

func (c *call) viewProject() (int, any, error) {
	p, err := c.projectOf(c.path("project"), false)
	if err != nil {
		return 0, nil, err
	}

	return http.StatusOK, p.view(), nil
}

func (c *call) createProject() (int, any, error) {
	body, err := decode[api.ProjectCreate](c)
	if err != nil {
		return 0, nil, err
	}

	if c.user.role < Collaborator {
		return 0, nil, forbidden()
	}

	p, err := c.makeProjectLocked(string(body.Name), body.Description, true)
	if err != nil {
		return 0, nil, err
	}

	return http.StatusCreated, p.view(), nil
}

func (c *call) updateProject() (int, any, error) {
	body, err := decode[api.ProjectUpdate](c)
	if err != nil {
		return 0, nil, err
	}

	p, err := c.projectOf(c.path("project"), true)
	if err != nil {
		return 0, nil, err
	}

	if err := rename(&c.projects, p, string(body.Name), body.Description); err != nil {
		return 0, nil, err
	}

	return http.StatusOK, p.view(), nil
}

// rename changes name and description where there is a new one.
func rename[T resource](t *table[T], row T, name, description string) error {
	b := row.base()

	if name != "" {
		if err := checkName(name); err != nil {
			return err
		}

		if err := t.free(b.scope, name, b.id); err != nil {
			return err
		}

		b.name = name
	}

	if description != "" {
		b.description = description
	}

	b.touch()

	return nil
}

func (c *call) deleteProject() (int, any, error) {
	p, err := c.projectOf(c.path("project"), true)
	if err != nil {
		return 0, nil, err
	}

	for noun, left := range map[string]int{
		"an instance": len(c.instances.in(p.id)), "a disk": len(c.disks.in(p.id)), "a floating IP": len(c.floating.in(p.id)),
		"a project image": len(c.images.in(p.id)), "a snapshot": len(c.snapshots.in(p.id)),
	} {
		if left > 0 {
			return 0, nil, invalidRequest("project to be deleted contains %s: %s", noun, p.name)
		}
	}

	vpcs := c.vpcs.in(p.id)
	if len(vpcs) > 1 || len(vpcs) == 1 && vpcs[0].name != "default" {
		return 0, nil, invalidRequest("project to be deleted contains a VPC: %s", p.name)
	}

	for _, v := range vpcs {
		c.dropVPCLocked(v)
	}

	c.projects.drop(c.ledger, p)

	return http.StatusNoContent, nil, nil
}
