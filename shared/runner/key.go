package runner

import (
	"fmt"
	"os"
	"strings"

	"github.com/siderolabs/go-api-signature/pkg/serviceaccount"
)

// checkKey reads the key and compares it with the id. No error quotes it.
func (s *settings[C]) checkKey() error {
	const want = "want the value that `omnictl infraprovider create` printed"

	if s.key == "" && s.Omni.KeyFile != "" {
		data, err := os.ReadFile(s.Omni.KeyFile)
		if err != nil {
			return fmt.Errorf("read service account key: %w", err)
		}

		s.key = string(data)
	}

	s.key = strings.TrimSpace(s.key)
	if s.key == "" {
		return fmt.Errorf("OMNI_SERVICE_ACCOUNT_KEY or --omni-service-account-key-file is required: %s", want)
	}

	account, err := serviceaccount.Decode(s.key)
	if err != nil {
		return fmt.Errorf("the service account key is damaged or incomplete: %s", want)
	}

	id, ok := strings.CutPrefix(account.Name, "infra-provider:")
	if !ok {
		return fmt.Errorf("the service account key is of account %q, which is no infra provider: %s", account.Name, want)
	}

	if id != s.Provider.ID {
		return fmt.Errorf("the service account key is of provider %q, but the provider id is %q: set --id or PROVIDER_ID to %q, or use the other key", id, s.Provider.ID, id)
	}

	return nil
}
