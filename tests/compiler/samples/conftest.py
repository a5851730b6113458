from tests.virtual_devices import eight_devices

eight_devices()
