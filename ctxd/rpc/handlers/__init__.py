"""What each family of methods does: decoded parameters in, one call on a service, its result out."""
