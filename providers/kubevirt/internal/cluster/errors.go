package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Manifest is the file of the repository that grants what the provider needs; errors name it.
const Manifest = "deploy/rbac.yaml"

// Op is what a call does, as access rules put it.
type Op struct {
	// Verb is that of the rules: get, list, watch, create, patch, update, delete.
	Verb string
	// Resource is the kind in plural, with its group and subresource if it has them: "virtualmachines.kubevirt.io".
	Resource string
	// Namespace is empty for what has none.
	Namespace string
	// Name is empty for lists and watches.
	Name string
}

// String says what is done to what.
func (o Op) String() string {
	text := o.Verb + " " + o.Resource
	if o.Name != "" {
		text += fmt.Sprintf(" %q", o.Name)
	}

	if o.Namespace != "" {
		text += fmt.Sprintf(" in namespace %q", o.Namespace)
	}

	return text
}

// changes reports whether the API server judges an object that the call brings.
func (o Op) changes() bool { return slices.Contains([]string{"create", "patch", "update"}, o.Verb) }

// named reports whether the call is about an object that has to be there.
func (o Op) named() bool { return o.Verb != "create" && o.Name != "" }

// callError says what was tried and why that failed.
type callError struct {
	op           Op
	text, advice string
	err          error
}

func (e *callError) Error() string {
	text := e.op.String() + ": " + e.text
	if e.advice != "" {
		text += " (" + e.advice + ")"
	}

	return text
}

func (e *callError) Unwrap() error { return e.err }

// classify gives an error of a call its kind. It is the only place that knows what the API server's answers mean for the lifecycle;
// whatever it does not name is transient, as an operator may have put it right by the next try.
func classify(ctx context.Context, op Op, err error) error {
	if kind, ok := errors.AsType[*driver.Error](err); ok {
		// The library asks for a pause; client-go wraps the request's address around it.
		return &driver.Error{Kind: kind.Kind, After: kind.After, Err: fmt.Errorf("%s: %w", op, kind.Err)}
	}

	e := &callError{op: op, err: err}

	if pause, ok := errors.AsType[*pauseError](err); ok {
		e.text = discreet(op, pause.text)

		if pause.code == http.StatusTooManyRequests {
			return driver.Throttled(pause.after, e)
		}

		return &driver.Error{After: pause.after, Err: e}
	}

	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		e.text, e.advice = broken(ctx, op, err)

		return e
	}

	s := status.Status()
	e.text = discreet(op, cmp.Or(s.Message, string(s.Reason), http.StatusText(int(s.Code)))+passedOn(s))

	return e.answered(s)
}

// passedOn is the text of whoever stands between the client and what should have answered, which the client keeps apart from its own.
func passedOn(s metav1.Status) string {
	if s.Code < http.StatusInternalServerError || s.Details == nil {
		return ""
	}

	for _, c := range s.Details.Causes {
		if c.Type == metav1.CauseTypeUnexpectedServerResponse && c.Message != "" && !strings.Contains(s.Message, c.Message) {
			return ": " + c.Message
		}
	}

	return ""
}

// broken says why there was no answer.
func broken(ctx context.Context, op Op, err error) (text, advice string) {
	// The cause names the time that has passed.
	if cause := context.Cause(ctx); cause != nil {
		return cause.Error(), ""
	}

	host := ""

	if e, ok := errors.AsType[*url.Error](err); ok {
		if u, parseErr := url.Parse(e.URL); parseErr == nil {
			host = " at " + u.Host
		}

		err = e.Err
	}

	return discreet(op, err.Error()), "no answer from the Kubernetes API" + host
}

// answered gives an answer of the API server its kind.
func (e *callError) answered(s metav1.Status) error {
	switch {
	case denied(s.Message) && s.Code < http.StatusInternalServerError && e.op.Verb == "delete":
		// It has to go whatever it is like; the rule may be there to protect it for a while only.
		e.advice = "a rule of the cluster refuses the deletion; lift it, or delete it by hand"
	case denied(s.Message) && s.Code < http.StatusInternalServerError:
		e.advice = "a rule of the cluster refuses it; change the machine class, or the rule"

		return driver.Terminal(e)
	case s.Code == http.StatusNotFound:
		return e.notFound(s)
	case replaced(s):
		// It is looked at again.
	case s.Code == http.StatusUnauthorized:
		e.advice = "the API server does not accept the provider's credentials: check the kubeconfig or the token"
	case s.Code == http.StatusForbidden:
		return e.forbidden(s)
	case (s.Code == http.StatusUnprocessableEntity || s.Code == http.StatusBadRequest || s.Code == http.StatusRequestEntityTooLarge) && e.op.changes():
		return driver.Terminal(e)
	case s.Code == http.StatusTooManyRequests:
		return driver.Throttled(0, e)
	case s.Code == http.StatusServiceUnavailable && strings.HasSuffix(e.op.Resource, ".subresources.kubevirt.io"):
		e.advice = "virt-api, which switches machines, does not answer: look at KubeVirt's pods and at its APIService"
	case s.Code >= http.StatusInternalServerError && strings.Contains(s.Message, "failed calling webhook"):
		e.advice = "a webhook of the cluster does not answer"
	}

	return e
}

func (e *callError) notFound(s metav1.Status) error {
	switch {
	case unserved(s):
		e.advice = "the cluster does not serve this kind: is what defines it installed?"
		if !strings.Contains(e.op.Resource, ".") || strings.HasSuffix(e.op.Resource, "kubevirt.io") {
			e.advice = "the cluster does not serve this kind: are KubeVirt and its Containerized Data Importer installed?"
		}
	case s.Details != nil && s.Details.Kind == "namespaces" && e.op.Resource != "namespaces":
		e.advice = fmt.Sprintf("create the namespace, and apply %s to it", Manifest)
	case e.op.named():
		return &driver.Error{Kind: driver.KindNotFound, Err: e}
	}

	return e
}

// unserved reports whether it is not the object that the API server does not have but its kind.
func unserved(s metav1.Status) bool {
	return s.Details == nil || s.Details.Name == "" || slices.ContainsFunc(s.Details.Causes, func(c metav1.StatusCause) bool {
		return c.Type == metav1.CauseTypeUnexpectedServerResponse
	})
}

func (e *callError) forbidden(s metav1.Status) error {
	switch {
	case strings.Contains(s.Message, "exceeded quota"):
		return driver.Capacity(e)
	case strings.Contains(s.Message, "failed quota"):
		e.advice = "the namespace's quota counts what the machine class does not set"
	case strings.Contains(s.Message, "being terminated"):
		e.advice = "the namespace is being deleted"
	case strings.Contains(s.Message, " cannot ") || s.Message == "":
		e.advice = fmt.Sprintf("the provider's account lacks the right to %s %s%s: apply %s", e.op.Verb, e.op.Resource, e.op.scope(), Manifest)
	case strings.Contains(s.Message, "usage per ") && e.op.changes():
		e.advice = "a LimitRange of the namespace refuses the machine's size"

		return driver.Terminal(e)
	}

	return e
}

// scope says where a right is missing.
func (o Op) scope() string {
	if o.Namespace == "" {
		return " in the cluster"
	}

	return fmt.Sprintf(" in namespace %q", o.Namespace)
}

// denied reports whether an admission webhook or policy has judged the object, whatever code it chose.
func denied(message string) bool {
	return strings.Contains(message, "admission webhook") && strings.Contains(message, "denied the request") ||
		strings.Contains(message, "ValidatingAdmissionPolicy")
}

// mostText bounds what is shown of an answer.
const mostText = 1000

// encoded finds what may be a Secret's data: the API server repeats in some errors the object that it was given.
var encoded = regexp.MustCompile(`[A-Za-z0-9+/_-]{24,}={0,2}`)

// discreet makes a text of the cluster fit to be shown. Join tokens in plain text are hidden by the library.
func discreet(op Op, text string) string {
	if strings.HasPrefix(op.Resource, "secrets") {
		text = encoded.ReplaceAllString(text, "(hidden)")
	}

	text = strings.Join(strings.Fields(text), " ")

	if runes := []rune(text); len(runes) > mostText {
		text = string(runes[:mostText]) + "…"
	}

	return strings.ToValidUTF8(text, "\uFFFD")
}

// Exists reports whether err says that there is an object of that name.
func Exists(err error) bool { return apierrors.IsAlreadyExists(err) }

// Conflicts reports whether err says that an object is not what it was thought to be, or is in no state for what was asked.
func Conflicts(err error) bool {
	var status apierrors.APIStatus

	return apierrors.IsConflict(err) || errors.As(err, &status) && replaced(status.Status())
}

// replaced reports whether an apply was refused because the object has another UID than the one that was meant.
func replaced(s metav1.Status) bool {
	return s.Reason == metav1.StatusReasonInvalid && s.Details != nil &&
		slices.ContainsFunc(s.Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// Forbidden reports whether err says that the provider's account lacks a right.
func Forbidden(err error) bool { return apierrors.IsForbidden(err) }

// Unserved reports whether err says that the cluster does not know the kind of object.
func Unserved(err error) bool {
	var status apierrors.APIStatus

	return errors.As(err, &status) && status.Status().Code == http.StatusNotFound && unserved(status.Status())
}
